"""The agent's control protocol: one JSON object per line, in both directions.

A request is ``{"id": 7, "method": "clusters.state", "params": {...}}``; its answer is ``{"id": 7, "result": ...}``
or ``{"id": 7, "error": "one line"}``. A line without ``id`` is an event. The same lines travel over the owner's
socket pair, the agent's Unix socket, or the standard streams of a launcher such as ssh.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ..errors import AgentError

#: The longest line that either side accepts, in bytes: environments and logs travel in one line.
LINE_LIMIT = 64 * 1024 * 1024

Handler = Callable[["Peer", str, Mapping[str, Any]], Awaitable[Any]]
EventHandler = Callable[[str, Mapping[str, Any]], None]


class Peer:
    """One end of a control connection.

    Parameters
    ----------
    reader, writer : asyncio.StreamReader, asyncio.StreamWriter
    handler : callable, optional
        Answers requests: ``await handler(peer, method, params)``.
    on_event : callable, optional
        Receives events: ``on_event(method, params)``.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: Handler | None = None,
        on_event: EventHandler | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    @property
    def pid(self) -> int | None:
        """The process at the other end, as the kernel tells it; None where that is no Unix socket."""
        connection = self._writer.get_extra_info("socket")
        if connection is None or connection.family != socket.AF_UNIX:
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])

    async def run(self) -> None:
        """Serve the connection until the other side closes it."""
        try:
            while line := await self._reader.readline():
                self._dispatch(json.loads(line))
        except (ConnectionError, asyncio.IncompleteReadError, ValueError, LookupError) as error:
            self._fail(f"the control connection broke: {error}")
        finally:
            self._fail("the agent's control connection closed")
            self._writer.close()

    def _fail(self, reason: str) -> None:
        self.closed = True
        for future in self._answers.values():
            if not future.done():
                future.set_exception(AgentError(reason))
        self._answers.clear()

    def _dispatch(self, message: Mapping[str, Any]) -> None:
        if "method" not in message:
            future = self._answers.pop(message["id"], None)
            if future is None or future.done():
                return
            if "error" in message:
                future.set_exception(AgentError(message["error"]))
            else:
                future.set_result(message["result"])
        elif "id" in message:
            task = asyncio.ensure_future(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif self._on_event is not None:
            self._on_event(message["method"], message["params"])

    async def _answer(self, message: Mapping[str, Any]) -> None:
        assert self._handler is not None
        try:
            result = await self._handler(self, message["method"], message["params"])
        except Exception as error:  # noqa: BLE001 - whatever went wrong is the caller's to hear, in one line
            text = str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
            self._send({"id": message["id"], "error": text})
        else:
            self._send({"id": message["id"], "result": result})

    def _send(self, message: Mapping[str, Any]) -> None:
        if not self.closed:
            self._writer.write(json.dumps(message).encode() + b"\n")

    def notify(self, method: str, **params: Any) -> None:
        """Send an event; nobody answers."""
        self._send({"method": method, "params": params})

    async def request(self, method: str, **params: Any) -> Any:
        """Send a request and return its result.

        Raises
        ------
        AgentError
            With the other side's line, or if the connection closes first.
        """
        if self.closed:
            raise AgentError("the agent is gone")
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self._send({"id": number, "method": method, "params": params})
        return await future

    def close(self) -> None:
        """Close this end."""
        self._fail("the control connection was closed")
        self._writer.close()


@contextlib.asynccontextmanager
async def visit(path: str) -> AsyncIterator[Peer]:
    """Connect to the agent that listens at `path`, for some requests.

    Raises
    ------
    AgentError
        If it does not listen any more.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
    except OSError as error:
        raise AgentError(f"the agent at {path} does not answer: {error}") from error
    peer = Peer(reader, writer)
    serving = asyncio.ensure_future(peer.run())
    try:
        yield peer
    finally:
        peer.close()
        await serving


def call(path: str, method: str, timeout: float = 10.0, **params: Any) -> Any:
    """Ask the agent that listens at `path` one thing, without an event loop.

    Raises
    ------
    AgentError
        If it does not answer within `timeout` seconds, or refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"id": 0, "method": method, "params": params}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    if message.get("id") == 0:
                        if "error" in message:
                            raise AgentError(message["error"])
                        return message["result"]
        except OSError as error:
            raise AgentError(f"the agent at {path} does not answer: {error}") from error
    raise AgentError(f"the agent at {path} closed the connection")
