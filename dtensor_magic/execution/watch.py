"""Follow a cell from the thread that sent it: show its output as it comes, and judge how it ended."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

from ..errors import CellError, ClientDiedError
from .cell import CellRun, Notice, Outcome, Output, same_error
from .fold import HOLD, Folder
from .present import Presenter

_RELEASED = "was released from a collective"


class CellWatch:
    """One cell, as its sender sees it.

    Parameters
    ----------
    run : CellRun
    cluster : str
        The cluster's name.
    output : str
        ``fold``, ``each``, ``first`` or ``none``.
    labelled : bool
        Whether output is labelled by client.
    """

    def __init__(self, run: CellRun, cluster: str, output: str, *, labelled: bool) -> None:
        self.run = run
        self.results: dict[int, dict[str, Any]] = {}
        self.interrupted = False
        self._cluster = cluster
        self._shown = {"first": run.clients[:1], "none": ()}.get(output, run.clients)
        self._folder = Folder(self._shown, hold=0.0 if output == "each" else HOLD)
        self._presenter = Presenter(cluster, self._shown, labelled=labelled)

    def follow(self, deadline: float | None = None) -> bool:
        """Show output until the cell is over, or the monotonic clock reads `deadline`.

        Returns
        -------
        bool
            Whether the cell is over.
        """
        while True:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            waits = [self._folder.wait_until(now), None if deadline is None else deadline - now]
            wait = min((seconds for seconds in waits if seconds is not None), default=None)
            try:
                event = self.run.events.get(timeout=wait)
                over = self._take_all(event)
            except queue.Empty:
                over = False
            self._presenter.show(self._folder.take(time.monotonic()))
            if over:
                self._presenter.finish()
                return True

    def _take_all(self, event: Output | Outcome | Notice | None) -> bool:
        while event is not None:
            self._take(event)
            try:
                event = self.run.events.get_nowait()
            except queue.Empty:
                return False
        return True

    def _take(self, event: Output | Outcome | Notice) -> None:
        if isinstance(event, Notice):
            self._presenter.notice(event.text)
            return
        client = event.client
        if isinstance(event, Outcome):
            if client in self._shown:
                self._folder.finish(client)
            return
        if event.kind == "execute_result":
            self.results[client] = dict(event.content["data"])
        if client not in self._shown:
            return
        now = time.monotonic()
        if event.kind == "stream":
            if self.interrupted and event.content["text"].strip() == "KeyboardInterrupt":
                # IPython's own note of the interrupt, of which we give a fuller account.
                return
            self._folder.text(client, event.content["name"], event.content["text"], now)
        else:
            self._folder.rich(client, event.kind, event.content, now)

    def drop_pending(self) -> None:
        """Show what has come, and end the open line; for a cell that is given up."""
        for client in self._shown:
            self._folder.finish(client)
        self._presenter.show(self._folder.take(time.monotonic()))
        self._presenter.finish()

    def error(self, log_tail: Callable[[int], str]) -> CellError | ClientDiedError | None:
        """Return what the cell's failure is, if it failed.

        Parameters
        ----------
        log_tail : callable
            Gives the end of a client's log.
        """
        first = self.run.first_failure()
        if first is None:
            return None
        if first.kind == "died":
            first_line, newline, _ = self.run.code.strip().partition("\n")
            where = f"while running: {first_line[:80]}{' ...' if newline else ''}"
            return ClientDiedError(
                self._cluster, first.client, first.text, where=where, log_tail=log_tail(first.client)
            )
        alike = same_error(self.run.outcomes.values(), first)
        others = {
            outcome.client: _RELEASED if outcome.client in self.run.released else outcome.what()
            for outcome in self.run.outcomes.values()
            if outcome.kind != "ok" and outcome.client not in alike
        }
        return CellError(self._cluster, alike or [first.client], first.ename, first.evalue, first.traceback, others)
