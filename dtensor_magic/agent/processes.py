"""The processes that an agent answers for: who they are, how they ended, what they use."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field

import psutil

from ..errors import AgentError
from ..records import ProcessIdentity

#: Seconds for which a sample of a process is good enough, and what it shares with others.
SAMPLE_AGE = 0.9
SHARED_AGE = 60.0


@dataclass
class ManagedProcess:
    """One process.

    Attributes
    ----------
    identity : ProcessIdentity
    child : bool
        Whether it is our child, so that its exit code will be known.
    ended : asyncio.Event
    code : int or None
        Exit code, negative for a signal; None while it runs, or where the code cannot be known.
    ended_at : float
        Seconds since the epoch.
    """

    identity: ProcessIdentity
    child: bool
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None
    ended_at: float = 0.0
    _process: psutil.Process | None = None
    _sample: tuple[int | None, int | None, float | None] = (None, None, None)
    _sampled_at: float = -SHARED_AGE
    #: Bytes of resident memory that are others' share.
    _shared: int | None = None
    _shared_at: float = -SHARED_AGE

    @property
    def pid(self) -> int:
        """The process id."""
        return self.identity.pid

    def sample(self) -> tuple[int | None, int | None, float | None]:
        """Return resident and proportional memory (bytes) and CPU (percent of a core since the last call).

        The kernel adds the proportional share up page by page, 7 ms of CPU for a process with TensorFlow. So it is
        looked up now and then, and what the process took in between, which is its own alone, is added.
        """
        if self.ended.is_set():
            return None, None, None
        try:
            if self._process is None:
                self._process = psutil.Process(self.pid)
            now = time.monotonic()
            if now - self._sampled_at > SAMPLE_AGE:
                if now - self._shared_at > SHARED_AGE:
                    memory = self._process.memory_full_info()
                    self._shared = memory.rss - memory.pss if hasattr(memory, "pss") else None
                    self._shared_at = now
                with self._process.oneshot():
                    rss, cpu = self._process.memory_info().rss, self._process.cpu_percent()
                self._sample = rss, None if self._shared is None else max(0, rss - self._shared), cpu
                self._sampled_at = now
            return self._sample
        except psutil.Error:
            # It is ending, or belongs to another user namespace: not known.
            return None, None, None


class ProcessTable:
    """All processes of an agent, by a key that their starter chose."""

    def __init__(self) -> None:
        self._processes: dict[str, ManagedProcess] = {}
        # Reaped before the template told us whose pid it was.
        self._unclaimed: dict[int, int] = {}
        self._watches: dict[str, int] = {}

    def __getitem__(self, key: str) -> ManagedProcess:
        try:
            return self._processes[key]
        except KeyError:
            raise AgentError(f"no process {key} here") from None

    def get(self, key: str) -> ManagedProcess | None:
        """Return the process `key`, or None."""
        return self._processes.get(key)

    def add_child(self, key: str, pid: int) -> ManagedProcess:
        """Take in a child of ours."""
        try:
            identity = ProcessIdentity.of(pid)
        except psutil.NoSuchProcess:
            identity = ProcessIdentity(pid, 0.0)
        process = self._processes[key] = ManagedProcess(identity, child=True)
        if pid in self._unclaimed:
            self._end(process, self._unclaimed.pop(pid))
        return process

    def adopt(self, key: str, pid: int) -> ManagedProcess:
        """Take in a process that another one started: its end is seen, its exit code is not."""
        try:
            process = self._processes[key] = ManagedProcess(ProcessIdentity.of(pid), child=False)
            descriptor = os.pidfd_open(pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            raise AgentError(f"process {pid} ended before it could be watched") from None
        loop = asyncio.get_running_loop()
        self._watches[key] = descriptor

        def ended() -> None:
            self._unwatch(key)
            self._end(process, None)

        loop.add_reader(descriptor, ended)
        return process

    def _unwatch(self, key: str) -> None:
        descriptor = self._watches.pop(key, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    @staticmethod
    def _end(process: ManagedProcess, code: int | None) -> None:
        process.code = code
        process.ended_at = time.time()
        process.ended.set()

    def reap(self) -> list[tuple[int, int]]:
        """Collect children that ended; return pid and exit code of those that are none of ours yet."""
        strangers = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            for process in self._processes.values():
                if process.child and process.pid == pid and not process.ended.is_set():
                    self._end(process, code)
                    break
            else:
                self._unclaimed[pid] = code
                strangers.append((pid, code))
        return strangers

    def signal(self, key: str, signum: int, *, group: bool = True) -> bool:
        """Send a signal to a process and its group, or to it alone; return whether it was there to get it."""
        process = self[key]
        if process.ended.is_set() or (not process.child and not process.identity.alive()):
            return False
        try:
            # Clients lead their own session, so the group holds what they started.
            if group and os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, signum)
            else:
                os.kill(process.pid, signum)
        except ProcessLookupError:
            return False
        return True

    async def stop(self, keys: list[str], grace: float) -> None:
        """End processes: SIGTERM, and SIGKILL for those that still run after `grace` seconds."""
        running = [key for key in keys if key in self._processes and self.signal(key, signal.SIGTERM)]
        waits = [asyncio.ensure_future(self[key].ended.wait()) for key in running]
        if waits:
            await asyncio.wait(waits, timeout=grace)
        for key in running:
            self.signal(key, signal.SIGKILL)
        if waits:
            await asyncio.wait(waits, timeout=5)

    def forget(self, key: str) -> None:
        """Drop a process that ended."""
        self._unwatch(key)
        self._processes.pop(key, None)

    @property
    def keys(self) -> list[str]:
        """The keys of all processes."""
        return list(self._processes)
