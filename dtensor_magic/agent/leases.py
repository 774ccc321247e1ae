"""Who owns which cluster, and how long one without an owner lives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..errors import AgentError
from .protocol import Peer

#: What the owner of a cluster does for others: it alone has the connections to the kernels.
OWNERS_WORK = ("clusters.interrupt", "clusters.restart", "clusters.stacks")


class Leases:
    """The owners of an agent's clusters.

    An owner is a control connection. When it closes, its clusters end, but for those with a lease: they live on for
    that long, and a new owner that comes in time finds them.

    Parameters
    ----------
    close : callable
        Ends the cluster of a name.
    """

    def __init__(self, close: Callable[[str], Awaitable[None]]) -> None:
        self._close = close
        self._owners: dict[str, Peer | None] = {}
        self._seconds: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # When the timers fire, seconds since the epoch.
        self._ends: dict[str, float] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def own(self, name: str, peer: Peer) -> None:
        """Make `peer` the owner of the cluster `name`."""
        self._owners[name] = peer
        self._end_timer(name)

    def _end_timer(self, name: str) -> None:
        self._ends.pop(name, None)
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def owner(self, name: str) -> Peer | None:
        """Return the owner of the cluster `name`, or None while there is none."""
        return self._owners.get(name)

    def grant(self, name: str, seconds: float) -> None:
        """Let the cluster `name` live that long without an owner; 0 for not at all."""
        self._seconds[name] = seconds

    def release(self, name: str) -> None:
        """Take the owner of the cluster `name` away: its lease begins, or it ends."""
        self._owners[name] = None
        seconds = self._seconds.get(name, 0.0)
        if seconds > 0:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(seconds, self._end, name)
            self._ends[name] = time.time() + seconds
        else:
            self._end(name)

    def gone(self, peer: Peer) -> None:
        """Take note that an owner's connection has closed."""
        for name in [name for name, owner in self._owners.items() if owner is peer]:
            self.release(name)

    def methods(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """Return what the agent answers about owners, by method."""
        return {"clusters.owner": self._describe, **{work: partial(self._ask, work) for work in OWNERS_WORK}}

    async def _describe(self, name: str) -> dict[str, Any]:
        """Return whether the cluster has an owner, its pid, and, without one, when the cluster ends by itself."""
        if name not in self._owners:
            raise AgentError(f"no cluster {name} here")
        owner = self._owners[name]
        if owner is None or owner.closed:
            return {"owned": False, "pid": None, "until": self._ends.get(name)}
        return {"owned": True, "pid": owner.pid, "until": None}

    async def _ask(self, work: str, name: str, **params: Any) -> Any:
        """Have the owner of the cluster `name` do `work`; its driver answers also while its notebook is busy."""
        owner = self._owners.get(name)
        if owner is None or owner.closed:
            raise AgentError(f"cluster {name} has no owner; %dtensor_attach {name} takes it up.")
        return await owner.request(work, name=name, **params)

    def _end(self, name: str) -> None:
        task = asyncio.ensure_future(self._close(name))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def forget(self, name: str) -> None:
        """Drop a cluster that ended."""
        self._owners.pop(name, None)
        self._seconds.pop(name, None)
        self._end_timer(name)

    async def settled(self) -> None:
        """Return when all clusters whose end has begun have ended."""
        if self._closing:
            await asyncio.wait(self._closing)
