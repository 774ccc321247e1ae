"""One cell at a time, first come first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds between two looks at whether a waiting thread was interrupted or its cell cancelled.
_LOOK = 0.1


class CancelledWhileQueued(Exception):  # noqa: N818 - not an error: the user took the cell back
    """A cell was taken back before its turn came."""


class Ticket:
    """One cell's place in the queue.

    Attributes
    ----------
    entered, started : threading.Event
        Set when it stands in the queue, and when its turn has come.
    cancelled : threading.Event
        To be set by whoever takes the cell back.
    """

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.started = threading.Event()
        self.cancelled = threading.Event()


class Turns:
    """A queue of threads, of which the first one has its turn."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._queue: deque[Ticket] = deque()

    @property
    def taken(self) -> bool:
        """Whether somebody has the turn."""
        return bool(self._queue)

    @contextmanager
    def turn(self, ticket: Ticket | None = None, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wait for the turn, have it, and pass it on.

        Parameters
        ----------
        ticket : Ticket, optional
        on_wait : callable
            Called once, if there is a wait.

        Raises
        ------
        CancelledWhileQueued
            If the ticket is cancelled before its turn.
        """
        ticket = ticket or Ticket()
        try:
            with self._condition:
                self._queue.append(ticket)
                first = self._queue[0] is ticket
            ticket.entered.set()
            if not first:
                on_wait()
            with self._condition:
                while self._queue[0] is not ticket:
                    if ticket.cancelled.is_set():
                        raise CancelledWhileQueued
                    self._condition.wait(_LOOK)
            ticket.started.set()
            yield
        finally:
            with self._condition:
                if ticket in self._queue:
                    self._queue.remove(ticket)
                self._condition.notify_all()
