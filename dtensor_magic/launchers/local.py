"""The agent of this machine: one per process that drives clusters, started on first use."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..agent.protocol import LINE_LIMIT, Peer
from ..errors import AgentError
from ..loop import driver
from ..records import ProcessIdentity

#: A Unix socket's path may have about 107 bytes; ours are FOLDER/NUMBER/cCLIENT-PORT or FOLDER/agent.sock.
_SOCKET_PATH_LIMIT = 107
_LONGEST_NAME = len("/dtm-12345678/1000/c1023-55555")


class LocalAgent:
    """A supervisor process on this machine and the control connection to it."""

    def __init__(self) -> None:
        self.owner = ProcessIdentity.of(os.getpid())
        self.folder = private_folder()
        ours, theirs = socket.socketpair()
        log = self.folder / "agent.log"
        try:
            log.touch(mode=0o600)
            with log.open("wb") as output:
                self.process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "dtensor_magic.agent",
                        str(self.folder),
                        str(self.owner.pid),
                        repr(self.owner.started),
                    ],
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    # Not the notebook's folder: a user's random.py there must not shadow Python's.
                    cwd=self.folder,
                    env=_agent_environment(),
                    # Signals to the notebook kernel's process group are not for the agent.
                    start_new_session=True,
                )
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        finally:
            theirs.close()
        self._connection = ours
        self._peer: Peer | None = None
        self._closed_callbacks: dict[str, Callable[[str], None]] = {}
        self._connecting: asyncio.Task[Peer] | None = None

    async def _connect(self) -> Peer:
        reader, writer = await asyncio.open_connection(sock=self._connection, limit=LINE_LIMIT)
        self._peer = Peer(reader, writer, on_event=self._on_event)
        self._running = asyncio.ensure_future(self._peer.run())
        return self._peer

    def _on_event(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "cluster.closed":
            callback = self._closed_callbacks.pop(params["name"], None)
            if callback is not None:
                callback(params["by"])

    def when_closed(self, name: str, callback: Callable[[str], None]) -> None:
        """Call `callback` with who asked, on the driver's loop, if someone else ends the cluster `name`."""
        self._closed_callbacks[name] = callback

    @property
    def alive(self) -> bool:
        """Whether the supervisor runs and is connected."""
        return self.process.poll() is None and not (self._peer is not None and self._peer.closed)

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

    def warm(self) -> None:
        """Have the template import TensorFlow in the background."""
        driver().submit(self.request("agent.warm", env=dict(os.environ), path=python_path(), wait=False))

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._connection.close()

    def stop(self, timeout: float = 5.0) -> None:
        """End the supervisor and everything that it started; return when it is gone."""
        driver().loop.call_soon_threadsafe(self._hang_up)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            # It holds no state that could be lost; its children die with it.
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def python_path() -> list[str]:
    """Return the notebook's ``sys.path`` for its clients; a kernel adds its working folder itself."""
    path = [entry for entry in sys.path if entry]
    parent = str(Path(__file__).parents[2])
    return path if parent in path else [*path, parent]


def _agent_environment() -> dict[str, str]:
    """Return this process's environment, with our package importable as it is here."""
    env = dict(os.environ)
    parent = str(Path(__file__).parents[2])
    if parent not in {*site.getsitepackages(), site.getusersitepackages()}:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [parent, env.get("PYTHONPATH")]))
    return env


def private_folder() -> Path:
    """Make a new folder of mode 0700 whose path is short enough for Unix sockets in it."""
    candidates = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]  # noqa: S108
    for base in filter(None, candidates):
        room = len(os.fsencode(base)) + _LONGEST_NAME <= _SOCKET_PATH_LIMIT
        if room and os.access(base, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="dtm-", dir=base))
    raise AgentError(
        "no folder is writable and short enough for Unix sockets; set TMPDIR to a short path such as /tmp."
    )


_agent: LocalAgent | None = None
_lock = threading.Lock()


def local_agent() -> LocalAgent:
    """Return this process's agent, started if there is none, or the last one died."""
    global _agent  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _agent is not None and not _agent.alive:
            _agent.stop()
            _agent = None
        if _agent is None:
            _agent = LocalAgent()
        return _agent


def current_agent() -> LocalAgent | None:
    """Return this process's agent if one runs."""
    return _agent


def stop_agent() -> None:
    """End this process's agent, if any."""
    global _agent  # noqa: PLW0603
    with _lock:
        # A child that the notebook forked has a copy of the agent's handle, but the agent is not its own.
        if _agent is not None and _agent.owner.pid == os.getpid():
            _agent.stop()
        _agent = None


atexit.register(stop_agent)
