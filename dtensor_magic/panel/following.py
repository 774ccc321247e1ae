"""Follow a cluster for the views of it: a thread that reads its state while somebody looks, and none otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..cluster import Cluster, registry
from ..errors import DTensorMagicError
from ..state import ClusterPhase, ClusterState
from .kernels import FrontEnd
from .presence import Presence

#: Seconds between two looks at a cluster in which something goes on, and at one that is idle or not there.
BUSY_INTERVAL = 0.5
IDLE_INTERVAL = 1.0

#: Called with the cluster and its state; both None where there is none, the state where it cannot be told.
Listener = Callable[[Cluster | None, ClusterState | None], None]


class Follower:
    """Tells a listener about the cluster that cells go to, or one that was chosen.

    Parameters
    ----------
    listener : callable
        Called on the follower's thread.
    say : callable
        Shows a message, with ``problem=True``: what went wrong in the listener.
    front_end : FrontEnd
        Tells whether a page's answer would be heard now.

    Attributes
    ----------
    presence : Presence
        Its widget must be shown with the views.
    """

    def __init__(self, listener: Listener, say: Callable[..., None], front_end: FrontEnd) -> None:
        self._listener = listener
        self._say = say
        self._front_end = front_end
        self.presence = Presence()
        front_end.hear_while_busy(self.presence.widget)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._poke = threading.Event()
        self._views = 0
        #: The name of the cluster to follow; None for the one that was started last.
        self.chosen: str | None = None

    @property
    def running(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None and self._thread.is_alive()

    def views(self, count: int) -> None:
        """Have the thread run while `count`, the number of views, is above 0, and the page is there."""
        with self._lock:
            self._views = count
            self.presence.seen()
            if count and self._thread is None:
                self._thread = threading.Thread(target=self._follow, daemon=True, name="dtensor-follower")
                self._thread.start()
        self._poke.set()

    def poke(self) -> None:
        """Have it look at once: something changed."""
        self._poke.set()

    def cluster(self) -> Cluster | None:
        """Return the cluster that is followed."""
        chosen = registry.get(self.chosen) if self.chosen is not None else None
        return chosen or registry.current()

    def _follow(self) -> None:
        while True:
            with self._lock:
                if not self._views or self.presence.gone(deaf=bool(self._front_end.deaf())):
                    self._thread = None
                    return
            self._poke.clear()
            began = time.monotonic()
            state = self.look()
            busy = state is not None and state.phase in (ClusterPhase.BUSY, ClusterPhase.STARTING)
            interval = BUSY_INTERVAL if busy else IDLE_INTERVAL
            self._poke.wait(max(0.0, interval - (time.monotonic() - began)))

    def look(self) -> ClusterState | None:
        """Read the state now, tell the listener, and return it."""
        cluster = self.cluster()
        state = None
        if cluster is not None:
            try:
                state = cluster.state()
            except DTensorMagicError:
                # It was shut down this moment, or its agent is gone: the listener says so.
                state = None
        try:
            self._listener(cluster, state)
        except Exception as error:  # noqa: BLE001 - a view that fails must say so, and not end the others
            self._say(f"the panel cannot show this state: {type(error).__name__}: {error}", problem=True)
        return state
