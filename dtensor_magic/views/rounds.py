"""The last cells over all clients, and who made whom wait in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..state import CellSpan, ClusterState, client_ranges, name_clients
from .text import elapsed

#: Waits shorter than this say nothing: the clients' clocks and the sampling are no finer.
_LEAST_WAIT = 0.1
#: Who worked for at least this share of the longest hold-up held up the waiting client too.
_SHARE = 0.9
_MOST_SAID = 3


@dataclass
class Round:
    """A cell that the driver ran, on the clients that got it.

    Attributes
    ----------
    start, end : float
        Seconds since the epoch; while it runs, `end` is now.
    spans : dict of int to CellSpan
        By client.
    running : bool
    """

    start: float
    end: float
    spans: dict[int, CellSpan] = field(default_factory=dict)
    running: bool = False

    @property
    def text(self) -> str:
        """The cell's first line."""
        return next(iter(self.spans.values())).text

    @property
    def seconds(self) -> float:
        """How long it took, or has run."""
        return self.end - self.start


def rounds(state: ClusterState, now: float) -> list[Round]:
    """Return the cells in the clients' histories, oldest first.

    Spans with one run are of one cell. Those without a run are of code that came to clients from elsewhere: they
    are one cell where they overlap, and no client has two.
    """
    spans = sorted(
        ((span, client.id) for client in state.clients for span in client.cells),
        key=lambda item: (item[0].start, item[1]),
    )
    found: list[Round] = []
    for span, client in spans:
        end = max(span.start, now if span.end is None else span.end)
        current = _round_of(span, client, found)
        if current is None:
            current = Round(span.start, end)
            found.append(current)
        current.spans[client] = span
        current.end = max(current.end, end)
        current.running = current.running or span.end is None
    return found


def _round_of(span: CellSpan, client: int, found: Sequence[Round]) -> Round | None:
    """Return the cell among `found` that a span is of; None for a new one."""
    for one in reversed(found):
        runs = {other.run for other in one.spans.values()}
        if span.run in runs and (span.run or (client not in one.spans and span.start < one.end)):
            return one
        if not span.run:
            break
    return None


@dataclass(frozen=True)
class Waited:
    """Clients that others made wait.

    Attributes
    ----------
    waiters, blockers : tuple of int
    least, most : float
        Seconds that the waiters waited because of the blockers.
    ongoing : bool
        One of them waits yet.
    """

    waiters: tuple[int, ...]
    blockers: tuple[int, ...]
    least: float
    most: float
    ongoing: bool


def waited(cell: Round, clients: Iterable[int], now: float) -> list[Waited]:
    """Return who made whom wait in a cell, the longest wait first.

    A collective ends when its last client arrives, so a client that waits is held up by those that worked longest
    meanwhile. A client that ended, or never ran the cell, holds up those whose wait never came to its end.
    """
    sums: dict[tuple[int, tuple[int, ...]], float] = {}
    ongoing: set[tuple[int, tuple[int, ...]]] = set()
    others = sorted(set(clients) | set(cell.spans))
    waits = [
        (waiter, begin, now if until is None else until, until is None, span)
        for waiter, span in cell.spans.items()
        for begin, until in span.waits
    ]
    begins, ends = np.array([wait[1] for wait in waits]), np.array([wait[2] for wait in waits])
    # By client and wait: how long the client worked meanwhile.
    worked = np.array([_worked(cell.spans.get(other), begins, ends, now) for other in others])
    for number, (waiter, begin, end, waiting, span) in enumerate(waits):
        held = worked[:, number].copy()
        if waiting or (span.outcome not in ("running", "done") and span.end == end):
            held += [_gone(cell.spans.get(other), begin, end) for other in others]
        held[others.index(waiter)] = 0.0
        most = float(held.max())
        if most < _LEAST_WAIT:
            continue
        blockers = tuple(other for other, time in zip(others, held, strict=True) if time >= most * _SHARE)
        sums[waiter, blockers] = sums.get((waiter, blockers), 0.0) + most
        if waiting and not all(_waits(cell.spans.get(blocker)) for blocker in blockers):
            ongoing.add((waiter, blockers))
    by_blockers: dict[tuple[int, ...], list[tuple[int, float, bool]]] = {}
    for (waiter, blockers), seconds in sums.items():
        by_blockers.setdefault(blockers, []).append((waiter, seconds, (waiter, blockers) in ongoing))
    found = [
        Waited(
            tuple(sorted(waiter for waiter, _, _ in entries)),
            blockers,
            min(seconds for _, seconds, _ in entries),
            max(seconds for _, seconds, _ in entries),
            any(yet for _, _, yet in entries),
        )
        for blockers, entries in by_blockers.items()
    ]
    return sorted(found, key=lambda item: (-item.most, item.blockers))


def _worked(
    span: CellSpan | None, begins: NDArray[np.float64], ends: NDArray[np.float64], now: float
) -> NDArray[np.float64]:
    """Return for how many seconds of each time from begin to end a client was at work, not waiting."""
    if span is None:
        return np.zeros_like(begins)
    at, total = span.start, 0.0
    last = max(at, now if span.end is None else span.end)
    times, sums = [at], [total]
    for begin, until in [*sorted(span.waits, key=lambda wait: wait[0]), (last, last)]:
        total += max(0.0, begin - at)
        at = max(at, last if until is None else until)
        times += [max(times[-1], begin), at]
        sums += [total, total]
    return np.interp(ends, times, sums) - np.interp(begins, times, sums)


def _gone(span: CellSpan | None, begin: float, end: float) -> float:
    """Return for how many seconds from begin to end a client did not run the cell (any more)."""
    if span is None:
        return end - begin
    return 0.0 if span.end is None else max(0.0, end - max(begin, span.end))


def spells(cell: Round, span: CellSpan, now: float, steps: int) -> list[tuple[int, int, bool]]:
    """Return a cell's course on a client, coarse: where it worked and waited, each from a step to another.

    A cell may wait thousands of times: each of `steps` equal times shows what it did for most of it.
    """
    step = cell.seconds / steps
    if step <= 0:
        return [(0, 1, False)]
    first = min(steps - 1, int((span.start - cell.start) / step))
    end = max(span.start, now if span.end is None else span.end)
    last = max(first + 1, min(steps, round((end - cell.start) / step)))
    waits = [0.0] * steps
    for begin, until in span.waits:
        at, finish = begin - cell.start, (now if until is None else until) - cell.start
        for place in range(max(0, int(at / step)), min(steps, int(finish / step) + 1)):
            waits[place] += max(0.0, min(finish, (place + 1) * step) - max(at, place * step))
    found: list[tuple[int, int, bool]] = []
    for place in range(first, last):
        waiting = waits[place] > step / 2
        if found and found[-1][2] == waiting:
            found[-1] = (found[-1][0], place + 1, waiting)
        else:
            found.append((place, place + 1, waiting))
    return found


def who_waited(cell: Round, clients: Sequence[int], now: float) -> list[str]:
    """Say who made whom wait: ``clients 0-2 waited 3.1 s for client 3, which failed``."""
    lines = []
    for item in waited(cell, clients, now)[:_MOST_SAID]:
        verb = ("has waited" if len(item.waiters) == 1 else "have waited") if item.ongoing else "waited"
        alike = item.least >= item.most * _SHARE
        time = duration(item.most) if alike else f"{duration(item.least)} to {duration(item.most)}"
        lines.append(
            f"{name_clients(item.waiters)} {verb} {time} for {name_clients(item.blockers)}"
            f"{_reason(cell, item.blockers)}"
        )
    return _all_wait(cell, now) + lines


def _reason(cell: Round, blockers: Sequence[int]) -> str:
    said: dict[str, list[int]] = {}
    for client in blockers:
        span = cell.spans.get(client)
        outcome = "did not run the cell" if span is None else _ENDED.get(span.outcome, "")
        said.setdefault(outcome, []).append(client)
    said.pop("", None)
    if not said:
        return ""
    if sum(map(len, said.values())) == len(blockers) and len(said) == 1:
        return f", which {next(iter(said))}"
    return "".join(f"; {name_clients(ids)} {outcome}" for outcome, ids in said.items())


_ENDED = {"failed": "failed", "interrupted": "was interrupted", "died": "died"}


def _waits(span: CellSpan | None) -> bool:
    return span is not None and bool(span.waits) and span.waits[-1][1] is None


def _all_wait(cell: Round, now: float) -> list[str]:
    """Say that nobody works, if so: a collective that clients reached in different orders never ends."""
    since = [span.waits[-1][0] for span in cell.spans.values() if _waits(span)]
    if not since or len(since) < len(cell.spans) or now - max(since) < 1:
        return []
    return [f"all wait and none works, {name_clients(cell.spans)}: for {duration(now - max(since))} now"]


def duration(seconds: float) -> str:
    """Write a short time for people: ``120 ms``, ``3.1 s``, ``2 min 5 s``."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 59.95 else elapsed(seconds)


@dataclass(frozen=True)
class Row:
    """A row of the timeline: clients that did alike, shown as the first of them."""

    clients: tuple[int, ...]
    client: int

    @property
    def label(self) -> str:
        """Name its clients in short."""
        return client_ranges(self.clients)


def rows(state: ClusterState, cells: Sequence[Round], now: float, *, most: int) -> list[Row]:
    """Return a row per client; where there are more than `most`, clients whose bars look alike share one."""
    ids = [client.id for client in state.clients]
    if len(ids) <= most:
        return [Row((client,), client) for client in ids]
    alike: dict[tuple[object, ...], list[int]] = {}
    for client in ids:
        alike.setdefault(tuple(_look(cell, client, now) for cell in cells), []).append(client)
    return [Row(tuple(group), group[0]) for group in alike.values()]


#: Times in one of so many steps of a cell look alike.
_STEPS = 12


def _look(cell: Round, client: int, now: float) -> tuple[object, ...]:
    span = cell.spans.get(client)
    if span is None:
        return ()

    def step(time: float | None) -> int:
        at = now if time is None else time
        return round((at - cell.start) / cell.seconds * _STEPS) if cell.seconds else 0

    return (span.outcome, step(span.end), _waiting_share(cell, span, now))


def _waiting_share(cell: Round, span: CellSpan, now: float) -> int:
    """Return how long a client waited in all, in steps: its single waits may be many, and short."""
    total = sum((now if until is None else until) - begin for begin, until in span.waits)
    return round(total / cell.seconds * _STEPS) if cell.seconds else 0
