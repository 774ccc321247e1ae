"""Where this client's main thread stands, and whether it waits in a collective: evidence, not a guess."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

#: Seconds between the two looks that tell waiting from computing.
LOOK = 0.1

#: A process that uses less of a core than this between two looks computes nothing.
IDLE_SHARE = 0.2

# A main thread in TensorFlow that uses no CPU waits for a device, that is for its peers, unless it is here.
_NOT_COLLECTIVE = (
    "tensorflow.python.data",
    "tensorflow.python.lib.io",
    "tensorflow.python.ops.gen_dataset_ops",
    "tensorflow.python.ops.gen_io_ops",
    "tensorflow.python.ops.gen_data_flow_ops",
)

# Frames between a user's call and the function that it names.
_WRAPPERS = {"error_handler", "op_dispatch_handler", "wrapper", "wrapped", "__call__", "_call", "call_function"}


@dataclass(frozen=True)
class Frame:
    """One frame of a stack.

    Attributes
    ----------
    file : str
    line : int
    function : str
    source : str
        The line's text, stripped; empty where it is not to be had.
    module : str
    cell : bool
        Whether it is a notebook cell's own.
    """

    file: str
    line: int
    function: str
    source: str
    module: str
    cell: bool


def main_stack() -> list[Frame]:
    """Return the main thread's frames, outermost first."""
    ident = threading.main_thread().ident
    frame = sys._current_frames().get(ident) if ident is not None else None  # noqa: SLF001 - as its docs say
    frames = []
    while frame is not None:
        frames.append(_describe(frame))
        frame = frame.f_back
    return frames[::-1]


def _describe(frame: FrameType) -> Frame:
    code = frame.f_code
    return Frame(
        file=code.co_filename,
        line=frame.f_lineno or 0,
        function=code.co_name,
        source=linecache.getline(code.co_filename, frame.f_lineno or 0, frame.f_globals).strip(),
        module=frame.f_globals.get("__name__") or "",
        cell=is_cell(code.co_filename),
    )


def is_cell(file: str) -> bool:
    """Whether `file` is the name that a kernel gives to a cell."""
    return "/ipykernel_" in file or file.startswith(("<ipython-input", "<cell"))


def report() -> dict[str, Any]:
    """Look twice, and say where the main thread stands.

    Returns
    -------
    dict
        ``frames`` (outermost first), ``line`` of the innermost cell frame (or None), ``source`` of that line,
        ``call``: the function that the cell called there, ``waiting``: whether it waits in a collective, ``idle``:
        whether the process used no CPU between the looks, and ``place``: a text that is equal only where the main
        thread is.
    """
    before, start, used = main_stack(), time.monotonic(), time.process_time()
    time.sleep(LOOK)
    frames = main_stack()
    share = (time.process_time() - used) / (time.monotonic() - start)
    idle = share < IDLE_SHARE and frames == before
    place = next((position for position in range(len(frames) - 1, -1, -1) if frames[position].cell), None)
    cell = frames[place] if place is not None else None
    return {
        "frames": [asdict(frame) for frame in frames],
        "line": cell.line if cell else None,
        "source": cell.source if cell else "",
        "call": _called(frames[place + 1 :]) if place is not None else "",
        "waiting": idle and bool(frames) and waits_for_peers(frames[-1].module),
        "idle": idle,
        "place": "|".join(f"{frame.file}:{frame.line}" for frame in frames if frame.cell),
    }


def waits_for_peers(module: str) -> bool:
    """Whether a main thread that uses no CPU, and whose innermost frame is in `module`, waits in a collective."""
    if not module.startswith("tensorflow.") or module.startswith(_NOT_COLLECTIVE):
        return False
    # A Python function inside a graph runs on another thread while the main one waits for it.
    return not any(_runs_python_op(frame) for frame in sys._current_frames().values())  # noqa: SLF001


def _runs_python_op(frame: FrameType | None) -> bool:
    while frame is not None:
        if (
            frame.f_globals.get("__name__") == "tensorflow.python.ops.script_ops"
            and frame.f_code.co_name == "__call__"
        ):
            return True
        frame = frame.f_back
    return False


def _called(frames: list[Frame]) -> str:
    """Name what the cell's line called, past decorators."""
    return next((frame.function for frame in frames if frame.function not in _WRAPPERS), "")
