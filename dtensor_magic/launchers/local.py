"""The agent of this machine: one per process that drives clusters, started on first use."""

from __future__ import annotations

import atexit
import os
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from ..errors import AgentError
from ..loop import driver
from ..records import ProcessIdentity
from ..shared_memory import clear_transfers
from .connection import AgentConnection

#: A Unix socket's path may have about 107 bytes; ours are FOLDER/NUMBER/cCLIENT-PORT or FOLDER/agent.sock.
_SOCKET_PATH_LIMIT = 107
_LONGEST_NAME = len("/dtm-12345678/1000/c1023-55555")


class LocalAgent(AgentConnection):
    """A supervisor process on this machine and the control connection to it."""

    def __init__(self) -> None:
        self.owner = ProcessIdentity.of(os.getpid())
        folder = private_folder()
        ours, theirs = socket.socketpair()
        log = folder / "agent.log"
        try:
            log.touch(mode=0o600)
            with log.open("wb") as output:
                self.process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "dtensor_magic.agent",
                        str(folder),
                        str(self.owner.pid),
                        repr(self.owner.started),
                    ],
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    # Not the notebook's folder: a user's random.py there must not shadow Python's.
                    cwd=folder,
                    env=_agent_environment(),
                    # Signals to the notebook kernel's process group are not for the agent.
                    start_new_session=True,
                )
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            theirs.close()
        super().__init__(ours, folder)

    @property
    def alive(self) -> bool:
        """Whether the supervisor runs and is connected."""
        return self.process.poll() is None and super().alive

    def warm(self) -> None:
        """Have the template import TensorFlow in the background."""
        driver().submit(self.request("agent.warm", env=dict(os.environ), path=python_path(), wait=False))

    def stop(self, timeout: float = 5.0) -> None:
        """Leave the supervisor: it ends, and everything that it started but for clusters with a lease."""
        self.hang_up()
        if self.leased:
            return
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            # It holds no state that could be lost; its children die with it.
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        clear_transfers(self.folder)


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
