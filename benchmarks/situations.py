"""What `recover.py` has both sides do: cells that fail, cells that are interrupted, variables that are kept."""

from __future__ import annotations

import time
from pathlib import Path

CLIENTS = 4

#: What both tools' clients have. `note` says, in a file, when a client came to that place.
SETUP = """
import ctypes, os, signal, time
from pathlib import Path
from program import collective
def note():
    (Path({folder!r}) / str(client_id)).write_text(repr(time.monotonic()))
collective(mesh)
"""

#: Cells that fail, by what happens in them.
FAILURES = {
    "every client raises": "note()\nraise ValueError('wrong')",
    "client 1 raises": "if client_id == 1:\n    note()\n    raise ValueError('wrong')\ncollective(mesh)",
    "client 1 is killed": "if client_id == 1:\n    note()\n    os.kill(os.getpid(), 9)\ncollective(mesh)",
    "client 0 (leader) is killed": "if client_id == 0:\n    note()\n    os.kill(os.getpid(), 9)\ncollective(mesh)",
}

#: Those in which every client notes its place before it fails.
ALL_FAIL = ("every client raises",)

#: Cells that are interrupted, by what runs.
INTERRUPTS = {
    "time.sleep": "note()\ntime.sleep(600)",
    "a collective that client 2 skips": "note()\nif client_id != 2:\n    collective(mesh)",
    "client 1 catches every interrupt": (
        "note()\nwhile client_id == 1:\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt:\n"
        "        continue\ntime.sleep(600)"
    ),
    "client 1 is stuck in C code": (
        "note()\nif client_id == 1:\n    lock = ctypes.PyDLL(None).pthread_mutex_lock\n"
        "    mutex = ctypes.create_string_buffer(64)\n    lock(mutex)\n    lock(mutex)\ntime.sleep(600)"
    ),
}

#: Those that only a kill ends, the ladder's last step.
LAST_STEP = ("client 1 catches every interrupt", "client 1 is stuck in C code")

#: Megabytes of variables, as global tensors.
KEPT = {"rebuild, 0 MB kept": 0, "rebuild, 100 MB kept": 100}

SITUATIONS = (*FAILURES, *INTERRUPTS, *KEPT)

#: Seconds for clients that noted their place to be stuck in what follows it.
SETTLE = 0.5


def noted(folder: Path, clients: int) -> float:
    """Wait until so many clients noted their place, and return when the last did, on the monotonic clock."""
    deadline = time.monotonic() + 60
    while len(files := list(folder.iterdir())) < clients or not all(file.stat().st_size for file in files):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(files)} of {clients} clients came to the place that is measured")
        time.sleep(0.01)
    return max(float(file.read_text()) for file in files)
