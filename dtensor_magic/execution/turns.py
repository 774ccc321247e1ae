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


class Turns:
    """A queue of threads, of which the first one has its turn."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._queue: deque[object] = deque()

    @property
    def taken(self) -> bool:
        """Whether somebody has the turn."""
        return bool(self._queue)

    @contextmanager
    def turn(
        self, on_wait: Callable[[], None] = lambda: None, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Wait for the turn, have it, and pass it on.

        Parameters
        ----------
        on_wait : callable
            Called once, if there is a wait.
        cancelled : callable
            Asked now and then during the wait.

        Raises
        ------
        CancelledWhileQueued
            If `cancelled` says so.
        """
        ticket = object()
        with self._condition:
            self._queue.append(ticket)
            first = self._queue[0] is ticket
        try:
            if not first:
                on_wait()
            with self._condition:
                while self._queue[0] is not ticket:
                    if cancelled():
                        raise CancelledWhileQueued
                    self._condition.wait(_LOOK)
            yield
        finally:
            with self._condition:
                self._queue.remove(ticket)
                self._condition.notify_all()
