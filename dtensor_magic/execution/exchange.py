"""A request to several clients at once, which is waited for, and can be interrupted, as a cell is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ClientDiedError, ClientsInterruptedError
from ..loop import driver
from .cell import CellRun
from .ladder import Ladder

if TYPE_CHECKING:
    from ..clients import ClientGroup


class Exchange:
    """Asks clients on their shell channels, where requests and cells come one after another.

    Parameters
    ----------
    group : ClientGroup
    what : str
        What is going on, for an error: ``while values were pulled``.
    """

    def __init__(self, group: ClientGroup, what: str) -> None:
        self.group = group
        self._what = what

    def ask(self, kind: str, contents: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """Send each client its content, and return the answers when all are there.

        To be called from the user's thread.

        Raises
        ------
        ClientDiedError
            As soon as one of them has ended.
        ClientsInterruptedError
            After a Ctrl-C, when the clients are free again.
        """
        run = CellRun(kind, tuple(contents))
        asking = driver().submit(self._ask_all(run, contents))
        try:
            answers = asking.result()
        except KeyboardInterrupt:
            raise ClientsInterruptedError(self.group.name, self._climb(run)) from None
        finally:
            asking.cancel()
        stopped = [client for client, answer in answers.items() if answer.get("text") == KeyboardInterrupt.__name__]
        if stopped:
            # Somebody else did it: another thread, or notebook.
            raise ClientsInterruptedError(self.group.name, dict.fromkeys(stopped, "was interrupted"))
        return answers

    def _climb(self, run: CellRun) -> dict[int, str]:
        ladder = Ladder(self.group, run)
        climbing = driver().submit(ladder.climb())
        while True:
            try:
                return climbing.result()
            except KeyboardInterrupt:
                # The user will not wait: straight to the last step.
                driver().loop.call_soon_threadsafe(ladder.hurry)

    async def _ask_all(
        self, run: CellRun, contents: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Mapping[str, Any]]:
        asking = {
            client: asyncio.ensure_future(self._ask_one(run, client, content))
            for client, content in contents.items()
        }
        try:
            answers = await asyncio.gather(*asking.values())
        finally:
            for task in asking.values():
                task.cancel()
        return dict(zip(asking, answers, strict=True))

    async def _ask_one(self, run: CellRun, client: int, content: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await self.group.ask_living(client, run.code, content)
        if answer is None:
            text = self.group.exits.get(client, "was ended with its cluster")
            run.died(client, text)
            raise ClientDiedError(self.group.name, client, text, where=self._what)
        run.answered(client, ok=answer.get("status") == "ok")
        return answer
