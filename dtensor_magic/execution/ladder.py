"""The interrupt ladder: interrupt; abort collectives; kill. Each step is bounded, and each client's end is told."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol

from .cell import CellRun

#: Seconds for a cell's Python code to end by the interrupt alone, before collectives are aborted.
INTERRUPT_STEP = 0.15

#: Seconds after the interrupt at which it is sent again: a cell may have caught the first.
AGAIN = 1.0

#: Seconds after the first interrupt at which clients that still run are killed.
KILL_STEP = 2.5

#: Seconds that the end of a killed process may take to be seen.
_REAP = 2.0


class Interruptible(Protocol):
    """What the ladder asks of the clients."""

    def signal(self, clients: Iterable[int], signum: int) -> Awaitable[None]:
        """Send a signal."""

    def kill(self, clients: Iterable[int]) -> Awaitable[None]:
        """Kill clients."""

    def report(self, client: int) -> Awaitable[Mapping[str, Any] | None]:
        """Ask where the client's main thread stands."""

    def abort(self, client: int, reason: str) -> Awaitable[bool]:
        """Abort the client's collectives."""


class Ladder:
    """Ends a cell on the clients that still run it.

    Parameters
    ----------
    clients : Interruptible
    run : CellRun
    """

    def __init__(self, clients: Interruptible, run: CellRun) -> None:
        self._clients = clients
        self._run = run
        self._hurry = asyncio.Event()
        self._done: dict[int, str] = {}

    def hurry(self) -> None:
        """Go straight to the last step. To be called on the driver's loop."""
        self._hurry.set()

    async def climb(self) -> dict[int, str]:
        """Return what came of each client, in words."""
        run = self._run
        run.interrupted = True
        targets = run.running
        start = time.monotonic()
        await self._clients.signal(targets, signal.SIGINT)
        await self._until(start + INTERRUPT_STEP)
        if not run.over and not self._hurry.is_set():
            await self._release(run.running, start + AGAIN)
            await self._until(start + AGAIN)
        if not run.over and not self._hurry.is_set():
            await self._clients.signal(run.running, signal.SIGINT)
            await self._release(run.running, start + KILL_STEP)
            await self._until(start + KILL_STEP)
        killed = run.running
        if killed:
            await self._clients.kill(killed)
            await self._until(time.monotonic() + _REAP, hurried=True)
        for client in killed:
            self._done[client] = "did not stop and had to be killed"
        return {client: self._outcome(client, targets) for client in run.clients}

    async def _release(self, clients: list[int], deadline: float) -> None:
        """Abort the collectives of those clients that wait in one. One that does not answer holds up nobody."""
        tasks = [asyncio.ensure_future(self._release_one(client)) for client in clients]
        while tasks and not self._run.over and not self._hurry.is_set() and time.monotonic() < deadline:
            _, pending = await asyncio.wait(tasks, timeout=0.02)
            tasks = list(pending)
        for task in tasks:
            task.cancel()

    async def _release_one(self, client: int) -> None:
        report = await self._clients.report(client)
        stuck = report is not None and report["waiting"] and client in self._run.running
        if stuck and await self._clients.abort(client, "interrupted by the user"):
            self._done[client] = "was released from a collective"

    async def _until(self, deadline: float, *, hurried: bool = False) -> None:
        while not self._run.over and time.monotonic() < deadline and (hurried or not self._hurry.is_set()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the run is filled by callbacks of many clients; a look is cheap

    def _outcome(self, client: int, targets: list[int]) -> str:
        if client not in targets:
            return "had finished"
        if client in self._done:
            return self._done[client]
        outcome = self._run.outcomes.get(client)
        if outcome is None:
            return "did not end"
        return {"ok": "finished", "died": f"{outcome.text}"}.get(outcome.kind, "was interrupted")


async def interrupt_strangers(clients: Interruptible, busy: list[int]) -> dict[int, str]:
    """Interrupt clients that run cells which are not ours to follow; return what was done to each."""
    await clients.signal(busy, signal.SIGINT)
    await asyncio.sleep(INTERRUPT_STEP)
    outcomes = dict.fromkeys(busy, "was interrupted")
    for client in busy:
        report = await clients.report(client)
        stuck = report is not None and report["waiting"]
        if stuck and await clients.abort(client, "interrupted by the user"):
            outcomes[client] = "was released from a collective"
    return outcomes
