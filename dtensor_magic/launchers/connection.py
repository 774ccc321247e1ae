"""The driver's end of an agent's control connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..agent.protocol import LINE_LIMIT, Peer
from ..errors import AgentError
from ..loop import driver

#: Does for others what only a cluster's owner can: ``answer(method, params)``, in a thread of its own.
Answer = Callable[[str, Mapping[str, Any]], Any]


class AgentConnection:
    """A connection to a supervisor, used from coroutines on any loop.

    Parameters
    ----------
    connection : socket.socket
        Connected to the supervisor.
    folder : Path
        The agent's private folder.
    """

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self.folder = folder
        self._connection = connection
        self._peer: Peer | None = None
        self._connecting: asyncio.Task[Peer] | None = None
        self._closed_callbacks: dict[str, Callable[[str], None]] = {}
        self._answers: dict[str, Answer] = {}
        #: Clusters of ours that outlive us.
        self.leased: set[str] = set()

    async def _connect(self) -> Peer:
        reader, writer = await asyncio.open_connection(sock=self._connection, limit=LINE_LIMIT)
        self._peer = Peer(reader, writer, self._handle, on_event=self._on_event)
        self._running = asyncio.ensure_future(self._peer.run())
        return self._peer

    def _on_event(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "cluster.closed":
            callback = self._closed_callbacks.pop(params["name"], None)
            if callback is not None:
                callback(params["by"])

    async def _handle(self, _: Peer, method: str, params: Mapping[str, Any]) -> Any:
        answer = self._answers.get(params["name"])
        if answer is None:
            raise AgentError(f"cluster {params['name']} is not this process's")
        return await driver().in_thread(answer, method, params)

    def when_asked(self, name: str, answer: Answer) -> None:
        """Let `answer` do what others ask of the owner of the cluster `name`."""
        self._answers[name] = answer

    def when_closed(self, name: str, callback: Callable[[str], None]) -> None:
        """Call `callback` with who asked, on the driver's loop, if someone else ends the cluster `name`."""
        self._closed_callbacks[name] = callback

    def forget(self, name: str) -> None:
        """Undo :meth:`when_closed` and :meth:`when_asked`."""
        self._closed_callbacks.pop(name, None)
        self._answers.pop(name, None)

    @property
    def alive(self) -> bool:
        """Whether the supervisor is connected."""
        return not (self._peer is not None and self._peer.closed)

    async def request(self, method: str, **params: Any) -> Any:
        """Ask the supervisor, from a coroutine on any loop.

        Raises
        ------
        AgentError
            If it refuses, or is gone; then the end of its log is in the error.
        """
        return await driver().on_loop(self._request(method, params))

    async def _request(self, method: str, params: Mapping[str, Any]) -> Any:
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
        peer = await asyncio.shield(self._connecting)
        try:
            return await peer.request(method, **params)
        except AgentError as error:
            if peer.closed:
                raise AgentError(f"{error} ({self._last_words()})") from None
            raise

    def _last_words(self) -> str:
        log = self.folder / "agent.log"
        words = log.read_text("utf-8", "replace").strip()[-2000:] if log.exists() else ""
        return f"its log says: {words}" if words else "it left no log"

    def hang_up(self) -> None:
        """Close the connection, from any thread. The supervisor takes it for the owner's end."""
        driver().loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
        else:
            self._connection.close()


def attach_to(socket_path: str) -> AgentConnection:
    """Connect to the agent that listens at `socket_path`.

    Raises
    ------
    AgentError
        If it does not listen any more.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(socket_path)
    except OSError as error:
        connection.close()
        raise AgentError(f"the agent at {socket_path} does not answer: {error}") from error
    return AgentConnection(connection, Path(socket_path).parent)
