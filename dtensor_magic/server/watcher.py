"""Live state: says by an event that clusters changed, while anybody listens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

from jupyter_events import EventLogger

from ..errors import DTensorMagicError
from .clusters import Clusters, Model

SCHEMA = Path(__file__).with_name("event_schemas") / "changed" / "v1.yaml"
SCHEMA_ID = "https://events.jupyter.org/dtensor_magic/changed/v1"


class Watcher:
    """Looks at the clusters again and again, and emits an event when they have changed.

    It looks only while an event socket is open or somebody asked for the clusters a short while ago.

    Parameters
    ----------
    clusters : Clusters
    events : EventLogger
        The server's.
    log : logging.Logger
    interval : float
        Seconds between two looks, and so between two events, at the least.
    patience : float
        Seconds after the last request at which it stands by.
    """

    def __init__(
        self,
        clusters: Clusters,
        events: EventLogger,
        log: logging.Logger | logging.LoggerAdapter[Any],
        *,
        interval: float,
        patience: float,
    ) -> None:
        self._clusters = clusters
        self._events = events
        self._log = log
        self._interval = interval
        self._patience = patience
        #: Rises with each event; from the clock, so that it does over a restart of the server too.
        self.revision = int(time.time() * 1000)
        self._asked = float("-inf")
        self._known: dict[str, Model] = {}
        self._task: asyncio.Task[None] | None = None
        events.register_event_schema(SCHEMA)

    def start(self) -> None:
        """Begin to look, on the running loop."""
        self._task = asyncio.ensure_future(self._watch())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def asked(self) -> None:
        """Note that somebody asked for the clusters."""
        self._asked = time.monotonic()

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        if time.monotonic() - self._asked < self._patience:
            return True
        # jupyter_events tells nobody who listens. Were these names to go, polling would still keep us awake.
        listeners = (getattr(self._events, f"_{kind}_listeners", {}) for kind in ("modified", "unmodified"))
        return bool(self._events.handlers) or any(table.get(SCHEMA_ID) for table in listeners)

    async def _watch(self) -> None:
        while True:
            if self.wanted:
                try:
                    await self._look()
                except (OSError, DTensorMagicError) as error:
                    self._log.warning("dtensor_magic: the clusters could not be looked at: %s", error)
            await asyncio.sleep(self._interval)

    async def _look(self) -> None:
        now = {model["name"]: model for model in await self._clusters.models(sample=False)}
        before, self._known = self._known, now
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if changed:
            self.revision += 1
            self._events.emit(schema_id=SCHEMA_ID, data={"revision": self.revision, "clusters": changed})
