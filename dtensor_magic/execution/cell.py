"""One cell on the clients: what was sent, what came back, and when it is over."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

OutcomeKind = Literal["ok", "error", "aborted", "died"]


@dataclass(frozen=True)
class Output:
    """Something that a client put out.

    Attributes
    ----------
    client : int
    kind : str
        The iopub message's type: stream, display_data, update_display_data, execute_result or clear_output.
    content : mapping
        The message's content.
    """

    client: int
    kind: str
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Notice:
    """Something that the driver has to say while a cell runs.

    Attributes
    ----------
    text : str
    """

    text: str


@dataclass(frozen=True)
class Outcome:
    """What came of a cell on one client.

    Attributes
    ----------
    client : int
    kind : str
        ``ok``; ``error``; ``aborted`` (the kernel dropped the request); ``died``.
    at : float
        When, on the monotonic clock.
    ename, evalue, traceback : str, str, list of str
        Of an error.
    text : str
        How a process died, in words.
    """

    client: int
    kind: OutcomeKind
    at: float
    ename: str = ""
    evalue: str = ""
    traceback: tuple[str, ...] = ()
    text: str = ""

    def what(self) -> str:
        """Say in one line what came of the client."""
        if self.kind == "error":
            reason = self.evalue.strip().partition("\n")[0]
            return f"raised {self.ename}{': ' * bool(reason)}{reason}"
        return self.text or self.kind


@dataclass
class CellRun:
    """A cell on its way. Filled on the driver's loop, read by the thread that waits for it.

    Attributes
    ----------
    code : str
    clients : tuple of int
        Those that it was sent to.
    id : str
        Its name, by which clients tell one cell from another.
    events : queue of Output, Outcome, Notice or None
        In the order of arrival; None when the cell is over on all clients.
    outcomes : dict of int to Outcome
    started : float
        On the monotonic clock.
    released : set of int
        Clients whose collectives were aborted because a peer failed.
    interrupted : bool
        Whether the interrupt ladder is at work.
    on_outcome : callable
        Called, on the driver's loop, whenever the cell is over on a client.
    """

    code: str
    clients: tuple[int, ...]
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    events: queue.SimpleQueue[Output | Outcome | Notice | None] = field(default_factory=queue.SimpleQueue)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    released: set[int] = field(default_factory=set)
    interrupted: bool = False
    on_outcome: Callable[[], None] = lambda: None
    _replies: dict[int, Outcome] = field(default_factory=dict)
    _idle: set[int] = field(default_factory=set)

    @property
    def running(self) -> list[int]:
        """The clients on which the cell is not over."""
        return [client for client in self.clients if client not in self.outcomes]

    @property
    def over(self) -> bool:
        """Whether the cell is over on all clients."""
        return len(self.outcomes) == len(self.clients)

    def take(self, client: int, channel: str, message: Mapping[str, Any]) -> None:
        """Take in a message of `client` that answers this cell's request."""
        kind = message["header"]["msg_type"]
        content = message["content"]
        if channel == "shell":
            self._replies[client] = _outcome(client, content)
            self._maybe_over(client)
        elif kind == "status":
            if content["execution_state"] == "idle":
                self._idle.add(client)
                self._maybe_over(client)
        elif kind in _OUTPUTS:
            self.events.put(Output(client, kind, content))

    def _maybe_over(self, client: int) -> None:
        # Output travels on another channel than the reply: a client is done when both are.
        if client in self._replies and client in self._idle:
            self._end(self._replies[client])

    def died(self, client: int, text: str) -> None:
        """Note that the client's process ended."""
        if client in self.clients and client not in self.outcomes:
            self._end(Outcome(client, "died", time.monotonic(), text=text))

    def answered(self, client: int, *, ok: bool) -> None:
        """Note that a request which is no cell was answered."""
        self._end(Outcome(client, "ok" if ok else "error", time.monotonic()))

    def _end(self, outcome: Outcome) -> None:
        if outcome.client in self.outcomes:
            return
        self.outcomes[outcome.client] = outcome
        self.events.put(outcome)
        if self.over:
            self.events.put(None)
        self.on_outcome()

    def broken_collective(self) -> str:
        """Return why collectives are closed, if TensorFlow itself gave one up in this cell."""
        for outcome in self.outcomes.values():
            if outcome.kind == "error" and _GIVEN_UP.search(outcome.evalue):
                return f"a collective failed on client {outcome.client}"
        return ""

    def first_failure(self) -> Outcome | None:
        """Return the failure that came first; a death before an error, an error before an abort."""
        failures = [
            outcome
            for outcome in self.outcomes.values()
            if outcome.kind != "ok" and outcome.client not in self.released
        ]
        order = {"died": 0, "error": 1, "aborted": 2}
        return min(failures, key=lambda outcome: (order[outcome.kind], outcome.at), default=None)


#: How TensorFlow says that it gave up a collective, after which it runs no other in that process.
_GIVEN_UP = re.compile(r"ollective ops is aborted|collective instance|RecvBuf|CollectiveService|WorkerService")

_OUTPUTS = frozenset({"stream", "display_data", "update_display_data", "execute_result", "clear_output"})


def _outcome(client: int, content: Mapping[str, Any]) -> Outcome:
    status: OutcomeKind = content["status"]
    now = time.monotonic()
    if status == "error":
        return Outcome(
            client,
            "error",
            now,
            ename=content.get("ename", ""),
            evalue=content.get("evalue", ""),
            traceback=tuple(content.get("traceback", ())),
        )
    return Outcome(client, "ok" if status == "ok" else "aborted", now)


def same_error(outcomes: Iterable[Outcome], first: Outcome) -> list[int]:
    """Return the clients whose error is that of `first`: the same class and text."""
    return sorted(
        outcome.client
        for outcome in outcomes
        if outcome.kind == "error" and (outcome.ename, outcome.evalue) == (first.ename, first.evalue)
    )
