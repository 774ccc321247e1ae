"""What a client does, for all who look on: its status page is kept current while a cell runs."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict

from ..agent.status import StatusWriter
from ..state import CellSpan, MeshState, Phase
from .stacks import IDLE_SHARE, is_cell, waits_for_peers
from .streams import end_line, last_words

#: Seconds between two looks at the main thread while a cell runs.
LOOK = 0.5

#: Looks without a cell after which the thread goes to sleep: waking it for each of many short cells costs them.
_LINGER = 4

#: How many of the last cells are remembered.
CELLS = 12

#: How many waits are told apart in the cell that runs, and in one that is over.
_RUNNING, _REMEMBERED = 200, 50


class Lookout:
    """Writes the client's status page while cells run.

    What a cell costs here is two writes. In one that takes longer, a thread looks twice a second at where the main
    thread stands, and tells waiting in a collective from computing by the evidence that `stacks.report` uses.

    Parameters
    ----------
    status : StatusWriter
    """

    def __init__(self, status: StatusWriter) -> None:
        self._status = status
        self._done: deque[CellSpan] = deque(maxlen=CELLS)
        self._span: CellSpan | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        # The last look: where the main thread stood, since when, and the CPU time used until then.
        self._place: tuple[object, ...] = ()
        self._since = 0.0
        self._used = 0.0

    def begin(self, cell: str, text: str, run: str) -> None:
        """Note that a cell begins: its number, its first line, and its driver's name for it."""
        span = CellSpan(cell, text, time.time(), run=run)
        self._status.update(Phase.BUSY, cell=cell, text=text, run=run, line=None, began=span.start, waits=[])
        self._place = ()
        end_line()
        with self._lock:
            self._span = span
            if not self._wake.is_set():
                self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_out, daemon=True, name="dtensor-lookout")
            self._thread.start()

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Say that the client does `what`, which is no cell, meanwhile."""
        now = time.time()
        self._status.update(Phase.BUSY, cell=what, text=what, run="", line=None, began=now, waits=[])
        try:
            yield
        finally:
            self._status.update(Phase.READY, line=None)

    def end(self, outcome: str, error: str, meshes: list[MeshState], *, leaving: bool) -> None:
        """Note how the cell ended.

        Parameters
        ----------
        outcome : str
            ``done``, ``failed`` or ``interrupted``.
        error : str
            The error in one line.
        meshes : list of MeshState
            Those that names hold now.
        leaving : bool
            Whether the client ends now because the cell said so.
        """
        with self._lock:
            span, self._span = self._span, None
        if span is None:
            # An interrupt came in before the cell's begin was noted.
            self._status.update(Phase.READY, line=None)
            return
        span.finish(time.time(), outcome)
        span.condense(_REMEMBERED)
        self._done.append(span)
        self._status.update(
            Phase.READY,
            line=None,
            leaving=leaving,
            said=error or last_words(),
            cells=[asdict(one) for one in self._done],
            meshes=[asdict(mesh) for mesh in meshes],
        )

    def _look_out(self) -> None:
        while True:
            self._wake.wait()
            without = 0
            while without < _LINGER:
                time.sleep(LOOK)
                with self._lock:
                    without = 0 if self._span is not None else without + 1
                    if self._span is not None:
                        self._look(self._span)
            with self._lock:
                if self._span is None:
                    self._wake.clear()

    def _look(self, span: CellSpan) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - as its docs say
        now, used = time.time(), time.process_time()
        module = frame.f_globals.get("__name__") or "" if frame is not None else ""
        line, place = None, []
        while frame is not None:
            place.append((frame.f_code, frame.f_lineno))
            if line is None and is_cell(frame.f_code.co_filename):
                line = frame.f_lineno
            frame = frame.f_back
        still = tuple(place) == self._place and used - self._used < IDLE_SHARE * LOOK
        if not still:
            self._place, self._since = tuple(place), now
        self._used = used
        waiting = still and waits_for_peers(module)
        if not waiting:
            span.close_wait(now)
        elif not span.waits or span.waits[-1][1] is not None:
            span.waits.append((self._since, None))
            span.condense(_RUNNING)
        phase = Phase.WAITING if waiting else Phase.BUSY
        self._status.refine(phase, line=line, said=last_words(), waits=span.waits)
