"""How the launchers of a job's parts know of each other: all connect to the first client's.

The leader waits until every part has come, so that a missing one is named instead of waited for without end; then
all start. Each part tells how it ended. When one fails, or is gone, the leader ends all; when those that work are
done, it ends the rest, and every launcher exits with the job's code. The words are JSON lines: ``{"part", "works",
"job"}`` and ``{"code", "why"}`` to the leader, ``{"start"}``, ``{"refused"}`` and ``{"code", "why"}`` from it.

Whoever can reach the port can end the job, and whoever can reach TensorFlow's ports could do that anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..errors import StartError

#: Seconds between two tries to reach the leader.
_PAUSE = 0.2

#: Seconds that a connection may take to say who it is.
_GREETING = 10.0

#: How soon a host that is gone without a word is missed: seconds of silence, then probes; and milliseconds that a
#: word of ours may stay unanswered, since no probe is sent behind one.
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))


class Control(ABC):
    """One launcher's end.

    Attributes
    ----------
    ended : asyncio.Future of (int, str)
        The job's exit code, and why it ended, when it has.
    """

    def __init__(self) -> None:
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    @abstractmethod
    async def meet(self, timeout: float) -> None:
        """Return when all parts are there.

        Raises
        ------
        StartError
            That names those which did not come within `timeout` seconds.
        """

    @abstractmethod
    async def report(self, code: int, why: str) -> None:
        """Tell how this part ended."""

    @abstractmethod
    async def close(self) -> None:
        """Leave. The others take it for this part's end, if it was not reported."""

    def _end(self, code: int, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result((code, why))


class Leader(Control):
    """The first client's launcher.

    Parameters
    ----------
    names : sequence of str
        All parts; the first is this one.
    works : bool
        Whether this part's end is the job's.
    port : int
    job : str
        What must be the same for all parts.
    """

    def __init__(self, names: Sequence[str], port: int, job: str, *, works: bool) -> None:
        super().__init__()
        self._own, self._port, self._job = names[0], port, job
        self._missing = list(names[1:])
        self._open = {self._own} if works else set()
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._reported: set[str] = set()
        self._complete = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        if not self._missing:
            self._complete.set()

    async def meet(self, timeout: float) -> None:
        """Wait for all parts, and have them start."""
        try:
            self._server = await asyncio.start_server(self._serve, None, self._port)
        except OSError as error:
            raise StartError(
                f"the parts of the job meet at port {self._port}, which cannot be opened ({error.strerror}); "
                "choose another with --control-port, the same for all parts."
            ) from error
        complete = asyncio.ensure_future(self._complete.wait())
        waits: list[asyncio.Future[Any]] = [complete, self.ended]
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        complete.cancel()
        if self.ended.done():
            raise StartError(f"{self.ended.result()[1]}, before the job began.")
        if self._missing:
            missing = ", ".join(self._missing)
            why = f"{missing} did not come within {timeout:g} s"
            self._conclude(1, why)
            await self.close()
            raise StartError(f"{why}; start the launcher there too, or give more --timeout.", missing=self._missing)
        for writer in self._writers.values():
            _say(writer, {"start": True})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        _keep_alive(writer)
        name = ""
        try:
            greeting = await asyncio.wait_for(_hear(reader), _GREETING)
            name = self._admit(greeting, writer)
            if name:
                report = await _hear(reader)
                self._take(name, report)
        except asyncio.TimeoutError:
            # Somebody who connects and says nothing is no part of the job.
            pass
        finally:
            if name:
                if name not in self._reported:
                    self._conclude(1, f"{name} is gone: its launcher or its host ended")
            else:
                writer.close()

    def _admit(self, greeting: dict[str, Any], writer: asyncio.StreamWriter) -> str:
        """Return the part's name, or nothing where it is none of ours."""
        name = str(greeting.get("part", ""))
        refused = ""
        if greeting.get("job") != self._job:
            refused = "its description of the job is another; give all parts the same options"
        elif name not in self._missing:
            refused = "there is one already" if name in self._writers else "the job has no such part"
        if refused:
            if name:
                _say(writer, {"refused": refused})
            return ""
        self._missing.remove(name)
        self._writers[name] = writer
        if greeting.get("works"):
            self._open.add(name)
        if not self._missing:
            self._complete.set()
        return name

    def _take(self, name: str, report: dict[str, Any]) -> None:
        if isinstance(report.get("code"), int):
            self._reported.add(name)
            self._note(name, report["code"], str(report.get("why", "")))

    async def report(self, code: int, why: str) -> None:
        """Note how this part ended."""
        self._note(self._own, code, why)

    def _note(self, name: str, code: int, why: str) -> None:
        self._open.discard(name)
        if code:
            self._conclude(code, why)
        elif not self._open:
            self._conclude(0, "")

    def _conclude(self, code: int, why: str) -> None:
        if self.ended.done():
            return
        self._end(code, why)
        for writer in self._writers.values():
            _say(writer, {"code": code, "why": why})

    async def close(self) -> None:
        """Leave, when what was said is sent."""
        if hasattr(self, "_server"):
            self._server.close()
        for writer in self._writers.values():
            await _close(writer)
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)


class Follower(Control):
    """Any other part's launcher.

    Parameters
    ----------
    name : str
    leader : (str, int)
        Where the leader listens.
    job : str
        What must be the same for all parts.
    works : bool
        Whether this part's end is needed for the job's.
    """

    def __init__(self, name: str, leader: tuple[str, int], job: str, *, works: bool) -> None:
        super().__init__()
        self._name, self._leader, self._job, self._works = name, leader, job, works
        self._writer: asyncio.StreamWriter | None = None

    async def meet(self, timeout: float) -> None:
        """Find the leader, and wait for its word to start."""
        deadline = time.monotonic() + timeout
        reader = await self._connect(deadline, timeout)
        try:
            word = await asyncio.wait_for(_hear(reader), max(0.0, deadline - time.monotonic()) + _GREETING)
        except asyncio.TimeoutError:
            raise StartError(f"the other parts of the job did not all come within {timeout:g} s.") from None
        if "refused" in word:
            raise StartError(f"{self._place} refused {self._name}: {word['refused']}.")
        if "start" not in word:
            raise StartError(f"the job ended before it began: {word.get('why') or 'its first launcher is gone'}.")
        self._listening = asyncio.ensure_future(self._listen(reader))

    @property
    def _place(self) -> str:
        return f"{self._leader[0]}:{self._leader[1]}"

    async def _connect(self, deadline: float, timeout: float) -> asyncio.StreamReader:
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(*self._leader), max(_PAUSE, deadline - time.monotonic())
                )
            except (OSError, asyncio.TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise StartError(
                        f"the first client's launcher did not answer at {self._place} within {timeout:g} s "
                        f"({error}); start it there, or choose a port that is open with --control-port."
                    ) from None
                await asyncio.sleep(_PAUSE)
                continue
            self._writer = writer
            _keep_alive(writer)
            _say(writer, {"part": self._name, "works": self._works, "job": self._job})
            return reader

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        word = await _hear(reader)
        if isinstance(word.get("code"), int):
            self._end(word["code"], str(word.get("why", "")))
        else:
            self._end(1, "the first client's launcher is gone: it or its host ended")

    async def report(self, code: int, why: str) -> None:
        """Tell the leader."""
        assert self._writer is not None
        _say(self._writer, {"code": code, "why": why})

    async def close(self) -> None:
        """Leave."""
        if hasattr(self, "_listening"):
            self._listening.cancel()
        if self._writer is not None:
            await _close(self._writer)


async def _hear(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next word; an empty one at the end, and for what is none."""
    try:
        word = json.loads(await reader.readline() or b"{}")
    except (ValueError, OSError):
        # Not our language, or a connection that broke.
        return {}
    return word if isinstance(word, dict) else {}


def _say(writer: asyncio.StreamWriter, word: dict[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(word).encode() + b"\n")


async def _close(writer: asyncio.StreamWriter) -> None:
    # The other end may be gone, which is no matter any more.
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.drain(), _PAUSE)
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), _PAUSE)


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
