"""A process that outlives the launcher by a moment, to end what it started when it is killed.

The system kills a launcher's children with it (PR_SET_PDEATHSIG), but not what those started. Each child leads a
group of its own, and the guard, at the other end of a pipe, kills the groups that are left when the pipe closes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


class Guard:
    """The launcher's end."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(self._writer)
                _detach()
                watch(reader, lambda group: os.killpg(group, signal.SIGKILL))
            finally:
                os._exit(0)
        os.close(reader)
        self.pid = pid

    def watch(self, group: int) -> None:
        """Answer for the process group `group` from now on."""
        os.write(self._writer, b"+%d\n" % group)

    def release(self, group: int) -> None:
        """Do so no more: its number may become another's."""
        os.write(self._writer, b"-%d\n" % group)

    def close(self) -> None:
        """End the guard, and what is left of the groups."""
        os.close(self._writer)
        os.waitpid(self.pid, 0)


def watch(reader: int, kill: Callable[[int], None]) -> None:
    """Keep the list that `reader` tells, and kill what is on it when it closes."""
    groups: set[int] = set()
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            group = int(line[1:])
            if line.startswith(b"+"):
                groups.add(group)
            else:
                groups.discard(group)
    for group in groups:
        try:
            kill(group)
        except ProcessLookupError:
            # It ended with the launcher.
            continue


def _detach() -> None:
    """Leave the terminal and the launcher's streams, so that no one waits for us to let go of them."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
