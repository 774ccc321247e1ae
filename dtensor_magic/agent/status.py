"""The status page: a small file that a client maps and writes, and its supervisor reads.

A client that is stuck in native code cannot answer, but its last words stand here. The page has one writer;
a reader that meets a half-written page reads again (a sequence lock).

Layout: two little-endian 32-bit numbers, sequence (odd while being written) and length, then JSON text.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..state import Phase

#: Bytes. The file is sparse: only pages that were written take memory.
PAGE_SIZE = 512 * 1024

_HEADER = struct.Struct("<II")
_ROOM = PAGE_SIZE - _HEADER.size


class StatusWriter:
    """The client's side.

    Parameters
    ----------
    path : str
        Created with mode 0600.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, PAGE_SIZE)
            self._map = mmap.mmap(descriptor, PAGE_SIZE)
        finally:
            os.close(descriptor)
        self._sequence = _HEADER.unpack_from(self._map)[0] & ~1
        #: Each field as JSON, so that a write costs what changed and no more.
        self._texts: dict[str, str] = {}
        self._phase: Phase | None = None
        self._lock = threading.Lock()

    def update(self, phase: Phase | None = None, **fields: Any) -> None:
        """Write `fields`; what is not named stays. A phase also sets the time since when it holds."""
        with self._lock:
            self._write(phase, fields)

    def refine(self, phase: Phase, **fields: Any) -> None:
        """While a cell runs, say more closely what it does; before and after, nothing."""
        with self._lock:
            if self._phase in (Phase.BUSY, Phase.WAITING):
                self._write(None if self._phase is phase else phase, fields)

    def _write(self, phase: Phase | None, fields: dict[str, Any]) -> None:
        if phase is not None:
            self._phase = phase
            fields.update(phase=phase.value, since=time.time())
        self._texts.update({name: json.dumps(value) for name, value in fields.items()})
        text = self._text()
        if len(text) > _ROOM:
            # A thousand devices fit; an error's text can be this long, and its end says most.
            error = json.loads(self._texts.get("error", '""'))
            self._texts["error"] = json.dumps(error[-_ROOM // 8 :])
            text = self._text()
        for name in ("cells", "waits", "said", "text", "meshes"):
            if len(text) > _ROOM and name in self._texts:
                # Readers do without, and a page that is too long would be none.
                self._texts[name] = '""' if name in ("said", "text") else "[]"
                text = self._text()
        _HEADER.pack_into(self._map, 0, self._sequence + 1, len(text))
        self._map[_HEADER.size : _HEADER.size + len(text)] = text
        self._sequence += 2
        _HEADER.pack_into(self._map, 0, self._sequence, len(text))

    def _text(self) -> bytes:
        return ("{" + ",".join(f'"{name}":{text}' for name, text in self._texts.items()) + "}").encode()


class StatusReader:
    """The supervisor's side of one client's page, which need not exist yet."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._map: mmap.mmap | None = None
        self._last: Mapping[str, Any] = {}
        self._sequence = 0

    def read(self) -> Mapping[str, Any]:
        """Return what the client wrote last; empty before its first words."""
        if self._map is None:
            try:
                descriptor = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return self._last
            try:
                if os.fstat(descriptor).st_size < PAGE_SIZE:
                    return self._last
                self._map = mmap.mmap(descriptor, PAGE_SIZE, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
        for _ in range(100):
            before, length = _HEADER.unpack_from(self._map)
            if before == self._sequence:
                break
            text = self._map[_HEADER.size : _HEADER.size + length]
            after, _ = _HEADER.unpack_from(self._map)
            if before == after and before % 2 == 0:
                if length:
                    self._last, self._sequence = json.loads(text), before
                break
        return self._last
