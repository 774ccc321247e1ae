"""A client's stdout and stderr: complete before a cell's reply, and cheap when there is nothing to send."""

from __future__ import annotations

import array
import codecs
import fcntl
import os
import select
import sys
import termios
import threading
from typing import Any, ClassVar

from ipykernel.iostream import OutStream

_CHUNK = 64 * 1024

#: Characters of the end of a stream that are remembered, for its last line.
_TAIL = 1000


class ClientStream(OutStream):  # type: ignore[misc]
    """ipykernel's stream, with two differences.

    What native code or a subprocess wrote to the file descriptor before a flush is sent by that flush: ipykernel's
    thread may still have it in the pipe when the cell's reply leaves. And a flush with nothing to send does not
    wait for the output thread, which costs a cell more than everything else here.
    """

    #: The stream of this process that spoke last.
    latest: ClassVar[ClientStream | None] = None

    #: While set, what native code writes to the file descriptor goes to the log alone.
    divert = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pipe_lock = threading.Lock()
        self._tail = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        super().__init__(*args, **kwargs)

    def _watch_pipe_fd(self) -> None:
        if self._fid is None:
            return
        readable = select.poll()
        readable.register(self._fid, select.POLLIN)
        try:
            while self._should_watch:
                readable.poll()
                self._drain()
        except OSError:
            self._exc = sys.exc_info()

    def _drain(self) -> None:
        """Take what is in the pipe now."""
        with self._pipe_lock:
            for _ in range(_waiting(self._fid) // _CHUNK + 1):
                if not _waiting(self._fid):
                    return
                text = os.read(self._fid, _CHUNK)
                if not self.divert:
                    decoded = self._decoder.decode(text)
                    self._remember(decoded)
                    super().write(decoded)
                os.write(self._original_stdstream_copy, text)

    def write(self, string: str) -> int | None:
        """Write to the notebook, and to the client's log, which keeps all of it whoever listens."""
        if isinstance(string, str):
            # A lone surrogate, from an undecodable file name for instance, cannot travel.
            string = string.encode("utf-8", "replace").decode("utf-8")
            self._remember(string)
        written: int | None = super().write(string)
        if self._should_watch:
            os.write(self._original_stdstream_copy, string.encode("utf-8"))
        return written

    def _remember(self, text: str) -> None:
        self._tail = (self._tail + text[-_TAIL:])[-_TAIL:]
        if not text.isspace():
            ClientStream.latest = self

    def flush(self) -> None:
        """Send what was written; return when it is on its way."""
        if self._should_watch and threading.current_thread() is not self.watch_fd_thread:
            self._drain()
        if self.pub_thread is None or not self._has_text():
            # Closed by the user's code, or nothing to send.
            return
        if threading.current_thread() is self.pub_thread.thread:
            self._flush()
            return
        sent = threading.Event()

        def send() -> None:
            try:
                self._flush()
            finally:
                sent.set()

        # One wake-up of the output thread instead of ipykernel's two.
        self.pub_thread.schedule(send)
        if not sent.wait(self.flush_timeout):
            print("a flush of the output timed out", file=sys.__stderr__)

    def _has_text(self) -> bool:
        with self._buffer_lock:
            # One buffer per parent message since ipykernel 7, one alone before.
            buffers = self._buffers.values() if hasattr(self, "_buffers") else [self._buffer]
            return any(buffer.tell() for buffer in buffers)


def _waiting(descriptor: int) -> int:
    """Return the number of bytes that can be read from a pipe without waiting."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def last_words() -> str:
    """Return the last line that this process put out, without what a carriage return wiped out."""
    if ClientStream.latest is None:
        return ""
    line = ClientStream.latest._tail.rstrip().rpartition("\n")[2]  # noqa: SLF001 - our own class
    return line.rpartition("\r")[2][-200:].strip()


def end_line() -> None:
    """Have what comes next begin its own line, as far as :func:`last_words` goes."""
    if ClientStream.latest is not None:
        ClientStream.latest._tail += "\n"  # noqa: SLF001 - our own class
