"""The processes of a part: started, listened to, signalled, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from ..agent.linux import die_with_parent
from ..resources import pin
from .guard import Guard
from .output import Labelled
from .part import Task

#: Seconds that output may still come from what a process left behind.
_LAST_WORDS = 1.0


class Child:
    """One process.

    Attributes
    ----------
    task : Task
    code : int or None
        Its exit code, negative for a signal; None while it runs.
    """

    def __init__(self, task: Task, process: subprocess.Popen[bytes]) -> None:
        self.task = task
        self.process = process
        self.code: int | None = None
        self.streams: list[Labelled] = []

    async def last_words(self) -> None:
        """Return when its output is written."""
        if self.streams:
            await asyncio.wait([stream.closed for stream in self.streams], timeout=_LAST_WORDS)


class Children:
    """All processes of a part.

    Parameters
    ----------
    ended : callable
        Called with each child that ends.
    unread : callable
        Called when nobody reads our output any more.
    command : sequence of str
        What a task of kind ``script`` runs.
    logs : Path or None
        A folder for a log file per process.
    limit_memory : bool
        Hold each process to its share of the memory.
    """

    def __init__(
        self,
        ended: Callable[[Child], None],
        unread: Callable[[], None],
        command: Sequence[str],
        logs: Path | None,
        *,
        limit_memory: bool,
    ) -> None:
        self._ended, self._unread = ended, unread
        self._command = list(command)
        self._logs = logs
        self._limit_memory = limit_memory
        self._guard = Guard()
        self._files: list[BinaryIO] = []
        self.all: list[Child] = []
        self._idle = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    @property
    def running(self) -> list[Child]:
        """Those that have not ended."""
        return [child for child in self.all if child.code is None]

    async def start(self, tasks: Sequence[Task], *, labelled: bool) -> None:
        """Start a process for each task; without labels its output goes where ours goes, as it is."""
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
        labelled = labelled or self._logs is not None
        for task in tasks:
            child = Child(task, self._spawn(task, labelled=labelled))
            # In one step with its start, so that its end is not missed.
            self.all.append(child)
            self._guard.watch(child.process.pid)
            if labelled:
                await self._listen(child)

    def _spawn(self, task: Task, *, labelled: bool) -> subprocess.Popen[bytes]:
        launcher = os.getpid()
        share = task.share
        memory = share.memory if share is not None and self._limit_memory else None

        def prepare() -> None:
            if sys.platform.startswith("linux"):
                die_with_parent(launcher)
            if share is not None:
                pin(share.cpus)
            if memory is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))

        pipe = subprocess.PIPE if labelled else None
        return subprocess.Popen(
            self._command if task.kind == "script" else _server_command(),
            env=task.env,
            stdin=None if not labelled and not os.isatty(0) else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            # Its own group, which can be ended as a whole; and the terminal's Ctrl-C is ours to pass on.
            start_new_session=True,
            # This process has one thread, so nothing can be locked in the child.
            preexec_fn=prepare,  # noqa: PLW1509
        )

    async def _listen(self, child: Child) -> None:
        log: BinaryIO | None = None
        if self._logs is not None:
            log = (self._logs / f"{child.task.name.replace(' ', '-')}.log").open("wb")
            self._files.append(log)
        loop = asyncio.get_running_loop()
        process = child.process
        for pipe, stream in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
            assert pipe is not None
            labelled = Labelled(child.task.label, stream, log, self._unread)
            child.streams.append(labelled)
            await loop.connect_read_pipe(lambda protocol=labelled: protocol, pipe)  # type: ignore[misc]

    def _reap(self) -> None:
        for child in self.running:
            child.code = child.process.poll()
            if child.code is not None:
                self._ended(child)
        if not self.running:
            self._idle.set()

    def signal(self, number: int, children: Sequence[Child] | None = None) -> None:
        """Send a signal to all that run, and to what they started; to `children`, if given."""
        for child in self.running if children is None else children:
            # A group can be gone between its leader's end and our hearing of it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, number)

    async def end(self, grace: float) -> None:
        """Ask all that run to end, and return when they have, or after `grace` seconds."""
        if self.running:
            self._idle.clear()
            self.signal(signal.SIGTERM)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace)

    async def close(self) -> None:
        """End everything that is left, whatever it is, and write its last words."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        for child in self.all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        for child in self.all:
            await child.last_words()
        self._guard.close()
        for file in self._files:
            file.close()


def _server_command() -> list[str]:
    """Return the command of a server: from where this package is, and not from the folder of the user's script."""
    parent = str(Path(__file__).parents[2])
    code = f"import sys; sys.path[0] = {parent!r}; from dtensor_magic.launch.server import main; main()"
    return [sys.executable, "-c", code]
