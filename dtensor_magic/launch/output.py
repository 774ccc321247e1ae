"""The output of processes, line by line, each with its process's label."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import BinaryIO

#: A line that is longer is shown in parts.
_LONGEST = 1 << 16


class Labelled(asyncio.Protocol):
    """Reads a process's stream, and writes its lines.

    Parameters
    ----------
    label : str
        Before each line.
    stream : binary file
        Where the lines go.
    log : binary file or None
        Where the bytes go as they are.
    lost : callable
        Called when nobody reads the stream any more.
    """

    def __init__(self, label: str, stream: BinaryIO, log: BinaryIO | None, lost: Callable[[], None]) -> None:
        self._label = f"[{label}] ".encode()
        self._stream, self._log = stream, log
        self._lost = lost
        self._rest = b""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Write the lines that are whole."""
        if self._log is not None:
            self._log.write(data)
            self._log.flush()
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > _LONGEST:
            lines.append(self._rest[:_LONGEST])
            self._rest = self._rest[_LONGEST:]
        self._write(lines)

    def connection_lost(self, _error: Exception | None) -> None:
        """Write what was left without a line's end."""
        if self._rest:
            self._write([self._rest])
        if not self.closed.done():
            self.closed.set_result(None)

    def _write(self, lines: list[bytes]) -> None:
        # A progress bar writes over itself; what a terminal would show in the end is the line.
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
        try:
            if shown:
                self._stream.write(b"".join(self._label + line + b"\n" for line in shown))
                self._stream.flush()
        except BrokenPipeError:
            self._lost()
