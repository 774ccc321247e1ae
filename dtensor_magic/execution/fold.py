"""Fold N clients' output into one: what they say alike is shown once, with the clients that it came from.

Nothing is dropped or rewritten, and each client's own order is kept. A line is shown as soon as all clients have
said it; what only some have said waits a moment for the others.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Seconds that a line waits for the other clients to say the same.
HOLD = 0.3


@dataclass(frozen=True)
class Piece:
    """Something to show.

    Attributes
    ----------
    clients : tuple of int
        Those who said it.
    kind : str
        ``stdout``, ``stderr``, or the type of a rich output's message.
    text : str
        Of a stream: a line with its newline, or a part of one without.
    content : mapping or None
        Of a rich output.
    """

    clients: tuple[int, ...]
    kind: str
    text: str = ""
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Item:
    key: str
    kind: str
    text: str
    content: Mapping[str, Any] | None
    at: float


class Folder:
    """Gathers what clients put out, and gives it back folded.

    Parameters
    ----------
    clients : iterable of int
    hold : float
        Seconds that a line waits for the other clients; 0 folds nothing.
    """

    def __init__(self, clients: Iterable[int], hold: float = HOLD) -> None:
        self._queues: dict[int, deque[_Item]] = {client: deque() for client in clients}
        # A last line without its newline, which more text may continue: kind, text, arrival.
        self._open: dict[int, tuple[str, str, float]] = {}
        self._active = set(self._queues)
        self._given = dict.fromkeys(self._queues, 0)
        self._hold = hold

    def text(self, client: int, kind: str, text: str, now: float) -> None:
        """Take in `text` that `client` wrote to the stream `kind`."""
        waiting = self._open.pop(client, None)
        if waiting is not None:
            if waiting[0] == kind:
                text = waiting[1] + text
            else:
                self._add(client, waiting[0], waiting[1], None, waiting[2])
        *lines, rest = text.split("\n")
        for line in lines:
            self._add(client, kind, line + "\n", None, now)
        if rest:
            self._open[client] = (kind, rest, now)

    def rich(self, client: int, kind: str, content: Mapping[str, Any], now: float) -> None:
        """Take in a rich output's message."""
        self._close(client)
        self._add(client, kind, "", content, now)

    def finish(self, client: int) -> None:
        """Note that `client` will say no more."""
        self._close(client)
        self._active.discard(client)

    def _close(self, client: int) -> None:
        waiting = self._open.pop(client, None)
        if waiting is not None:
            self._add(client, waiting[0], waiting[1], None, waiting[2])

    def _add(self, client: int, kind: str, text: str, content: Mapping[str, Any] | None, at: float) -> None:
        key = kind + ":" + text if content is None else kind + ":" + _rich_key(client, content)
        self._queues[client].append(_Item(key, kind, text, content, at))

    def take(self, now: float) -> list[Piece]:
        """Return what may be shown at time `now`."""
        for client, (_, _, at) in list(self._open.items()):
            if now - at >= self._hold:
                self._close(client)
        pieces: list[Piece] = []
        while (group := self._next(now)) is not None:
            items = [self._queues[client].popleft() for client in group]
            for client in group:
                self._given[client] += 1
            pieces.append(Piece(tuple(group), items[0].kind, items[0].text, items[0].content))
        return pieces

    def _next(self, now: float) -> list[int] | None:
        """Return the clients whose first items are one group that may be shown, or None."""
        groups: dict[str, list[int]] = {}
        for client, items in self._queues.items():
            if items:
                groups.setdefault(items[0].key, []).append(client)
        if not groups:
            return None
        if self._hold == 0:
            return [min((items[0].at, client) for client, items in self._queues.items() if items)[1]]
        awaited = {client for client, items in self._queues.items() if items or client in self._active}
        for clients in groups.values():
            if len(clients) == len(awaited):
                return clients
        ripe = [clients for clients in groups.values() if self._ripe(clients, now)]
        if not ripe:
            return None
        # A line that another client says further on waits until that one has come to it, so that they meet.
        later = self._said_later()
        settled = [clients for clients in ripe if self._queues[clients[0]][0].key not in later]
        # In turn, and by client: which of them came some milliseconds earlier means nothing.
        return min(settled or ripe, key=lambda clients: (self._given[clients[0]], clients[0]))

    def _ripe(self, clients: list[int], now: float) -> bool:
        return not self._active or all(now - self._queues[client][0].at >= self._hold for client in clients)

    def _said_later(self) -> set[str]:
        keys: set[str] = set()
        for items in self._queues.values():
            keys.update(item.key for position, item in enumerate(items) if position)
        return keys

    def wait_until(self, now: float) -> float | None:
        """Return in how many seconds :meth:`take` may give more without new input; None if not at all."""
        arrivals = [items[0].at for items in self._queues.values() if items]
        arrivals += [at for _, _, at in self._open.values()]
        return max(0.0, min(arrivals) + self._hold - now) if arrivals else None


def _rich_key(client: int, content: Mapping[str, Any]) -> str:
    # What will be updated later must stay one client's own.
    if content.get("transient", {}).get("display_id"):
        return f"{client}:{content['transient']['display_id']}"
    return json.dumps([content.get("data"), content.get("metadata"), content.get("wait")], sort_keys=True)
