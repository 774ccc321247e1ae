"""Watch a cell that takes long: tell who waits where, and release those that wait for a client which failed.

Evidence, not a guess: a client waits in a collective when its main thread stands in TensorFlow, in the same place
at two looks, and its process uses no CPU between them (`client.stacks`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from ..state import name_clients
from .cell import CellRun, Notice, Outcome

#: Seconds before the first look at a cell in which nothing failed.
PATIENCE = 1.5

#: Seconds between two looks, without and with a failure.
INTERVAL = 0.5
INTERVAL_AFTER_FAILURE = 0.2

#: Looks in a row that must find a client waiting at the same place before it is called so.
SURE = 3
SURE_AFTER_FAILURE = 2

#: Looks in a row after which a client that is idle outside a collective is told of too, if others wait.
IDLE_LOOKS = 10


class Watched(Protocol):
    """What the detective asks of the clients."""

    def report(self, client: int) -> Awaitable[Mapping[str, Any] | None]:
        """Ask where the client's main thread stands; None where it does not answer."""

    def abort(self, client: int, reason: str) -> Awaitable[bool]:
        """Abort the client's collectives."""


class Detective:
    """Watches one cell.

    Parameters
    ----------
    clients : Watched
    run : CellRun
    everyone : tuple of int
        All clients of the cluster, those that the cell was not sent to as well.
    grace : float
        Seconds that peers of a failed client may go on before those that wait in a collective are released.
    """

    def __init__(self, clients: Watched, run: CellRun, everyone: tuple[int, ...], grace: float) -> None:
        self._clients = clients
        self._run = run
        self._outsiders = [client for client in everyone if client not in run.clients]
        self._grace = grace
        self._streaks: dict[int, tuple[str, int]] = {}
        self._told: set[str] = set()

    async def watch(self) -> None:
        """Look again and again until the cell is over."""
        run = self._run
        news = asyncio.Event()
        run.on_outcome = news.set
        while not run.over:
            news.clear()
            failure = run.first_failure()
            due = failure is not None or time.monotonic() - run.started >= PATIENCE
            # The interrupt ladder tells by itself what comes of each client.
            if due and not run.interrupted:
                await self._look(failure)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(news.wait(), self._pause(failure))

    def _pause(self, failure: Outcome | None) -> float:
        """Return the seconds until the next look: no later than the grace's end."""
        if failure is None:
            return INTERVAL
        left = failure.at + self._grace - time.monotonic()
        return min(INTERVAL_AFTER_FAILURE, left) if left > 0 else INTERVAL_AFTER_FAILURE

    async def _look(self, failure: Outcome | None) -> None:
        running = self._run.running
        answers = await asyncio.gather(*(self._clients.report(client) for client in running))
        reports = {client: answer for client, answer in zip(running, answers, strict=True) if answer is not None}
        for client in running:
            self._count(client, reports.get(client))
        if failure is not None:
            await self._after_failure(failure, reports)
        else:
            self._tell_of_hang(running, reports)

    def _count(self, client: int, report: Mapping[str, Any] | None) -> None:
        if report is None or not report["idle"]:
            self._streaks.pop(client, None)
            return
        place = f"{report['waiting']}:{report['place']}"
        before, count = self._streaks.get(client, ("", 0))
        self._streaks[client] = place, count + 1 if before == place else 1

    def _streak(self, client: int) -> int:
        return self._streaks.get(client, ("", 0))[1]

    async def _after_failure(self, failure: Outcome, reports: Mapping[int, Mapping[str, Any]]) -> None:
        waited = time.monotonic() - failure.at
        if waited < self._grace:
            return
        running = self._run.running
        stuck = [
            client
            for client, report in reports.items()
            if report["waiting"] and self._streak(client) >= SURE_AFTER_FAILURE and client in running
        ]
        if running and not stuck and waited > self._grace + 1:
            self._tell(f"client {failure.client} {failure.what()}; {_who(running)} still at work.")
        # All at once: one that is aborted breaks the collective of the next before its own turn came.
        await asyncio.gather(*(self._release(client, failure) for client in stuck))

    async def _release(self, client: int, failure: Outcome) -> None:
        self._run.released.add(client)
        if not await self._clients.abort(client, f"client {failure.client} failed while its peers waited for it"):
            # It did not answer: whatever comes of it is its own doing.
            self._run.released.discard(client)

    def _tell_of_hang(self, running: list[int], reports: Mapping[int, Mapping[str, Any]]) -> None:
        waiting = [client for client in running if client in reports and reports[client]["waiting"]]
        idle = [client for client in running if client not in waiting]
        if not waiting or any(self._streak(client) < SURE for client in waiting):
            return
        if any(self._streak(client) < IDLE_LOOKS for client in idle):
            return
        finished = [client for client in self._run.clients if client not in running]
        places = {reports[client]["place"] for client in waiting}
        if not (finished or self._outsiders or idle or len(places) > 1):
            # All wait at one place: they wait for the machine, not for each other.
            return
        parts = [*_places("wait", waiting, reports), *_places("idle", idle, reports)]
        if finished:
            parts.append(f"{name_clients(finished)} finished the cell")
        if self._outsiders:
            parts.append(f"{name_clients(self._outsiders)} did not get the cell (--on)")
        self._tell(f"no progress: {'; '.join(parts)}. Interrupt the cell to release them.")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._run.events.put(Notice(text))


def _who(clients: list[int]) -> str:
    return f"{name_clients(clients)} {'are' if len(clients) != 1 else 'is'}"


def _places(verb: str, clients: list[int], reports: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Say where clients stand, those at one place together."""
    by_place: dict[str, list[int]] = {}
    for client in clients:
        by_place.setdefault(describe_place(reports[client]), []).append(client)
    words = {"wait": ("wait", "waits"), "idle": ("are idle", "is idle")}[verb]
    return [f"{name_clients(group)} {words[len(group) == 1]} {place}" for place, group in by_place.items()]


def describe_place(report: Mapping[str, Any]) -> str:
    """Say where a main thread stands: ``in reduce_sum at line 7 (total = tf.reduce_sum(x))``."""
    if report["line"] is None:
        return "outside the cell's own code"
    call = f"in {report['call']} " if report["call"] else ""
    source = f" ({report['source'][:100]})" if report["source"] else ""
    return f"{call}at line {report['line']}{source}"
