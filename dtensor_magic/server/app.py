"""The extension as jupyter_server knows it."""

from __future__ import annotations

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float

from .clusters import Clusters
from .errands import Errands
from .handlers import default_handlers
from .watcher import Watcher


class DTensorServer(ExtensionApp):
    """Serves the clusters of this user below ``/dtensor/api``.

    Clusters that it started live on when it stops, like all others, for as long as their lease.
    """

    name = "dtensor_magic"
    load_other_extensions = True

    lease = Float(
        24 * 60.0, help="Minutes that a cluster that was started here lives on while no notebook has taken it up."
    ).tag(config=True)
    interval = Float(0.5, help="Seconds between two looks at the clusters, while anybody listens.").tag(config=True)
    patience = Float(30.0, help="Seconds after the last request at which nobody is taken to listen.").tag(
        config=True
    )

    def initialize_handlers(self) -> None:
        """Add our handlers, and begin to watch as soon as the server runs."""
        assert self.serverapp is not None
        assert self.serverapp.event_logger is not None
        self._errands = Errands()
        clusters = Clusters(self._errands)
        self._watcher = Watcher(
            clusters, self.serverapp.event_logger, self.log, interval=self.interval, patience=self.patience
        )
        parts = {"clusters": clusters, "errands": self._errands, "watcher": self._watcher, "lease": self.lease}
        self.handlers.extend((pattern, handler, parts) for pattern, handler in default_handlers)
        self.serverapp.io_loop.add_callback(self._watcher.start)

    async def stop_extension(self) -> None:
        """Stop watching, and take back starts that are under way."""
        await self._watcher.stop()
        await self._errands.close()
