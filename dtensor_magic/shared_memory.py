"""Where values travel between processes of this host: private folders of files in memory.

Each reader maps such a file, so that a value is in memory once, however many have it. A folder lives for one push
or pull; what it held lives on as long as somebody maps it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from .errors import TransferError

#: Linux's folder of files in memory.
PLACE = Path("/dev/shm")  # noqa: S108 - what goes there lies in a folder of mode 0700


@contextmanager
def transfer_folder(agent_folder: Path, size: int, names: str) -> Iterator[Path]:
    """Make a private folder with room for `size` bytes, and remove it afterwards.

    It is in :data:`PLACE`, and where that has no room, in the agent's own folder.

    Raises
    ------
    TransferError
        If there is room in neither.
    """
    places = [PLACE, agent_folder]
    chosen = next((place for place in places if _room(place) >= size), None)
    if chosen is None:
        rooms = ", ".join(f"{place} has {_megabytes(_room(place))}" for place in places)
        raise TransferError(names, f"{names}: {_megabytes(size)} find no room on this host: {rooms}.")
    folder = Path(tempfile.mkdtemp(prefix=_prefix(agent_folder, os.getpid()), dir=chosen))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_transfers(agent_folder: Path, owner: int | None = None) -> None:
    """Remove what transfers left there: those of the process `owner`, which has ended, or all of this agent's."""
    for folder in PLACE.glob(f"{_prefix(agent_folder, owner)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(agent_folder: Path, owner: int | None) -> str:
    return f"{agent_folder.name}-{'' if owner is None else f'{owner}-'}"


def _room(place: Path) -> int:
    """Return the bytes that may be written at `place`; -1 where nothing may."""
    if not os.access(place, os.W_OK | os.X_OK):
        return -1
    found = os.statvfs(place)
    room = found.f_bavail * found.f_frsize
    return min(room, psutil.virtual_memory().available) if place == PLACE else room


def _megabytes(size: int) -> str:
    return "no folder that is ours to write" if size < 0 else f"{size / 1e6:,.1f} MB"
