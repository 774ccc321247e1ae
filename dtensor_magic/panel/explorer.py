"""The panel's variables: what names hold on the clients, and a picture of the one that is chosen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from ..cluster import Cluster
from ..errors import DTensorMagicError
from ..state import ClusterState
from ..variables import NameState, gather, over_clients
from ..views import layout, names


class Explorer:
    """A table of names, a list to choose from, and the chosen one's layout.

    Parameters
    ----------
    cluster : callable
        Returns the cluster to look into, or None.
    say : callable
        Shows a message; with ``problem=True`` as an error.
    """

    def __init__(self, cluster: Callable[[], Cluster | None], say: Callable[..., None]) -> None:
        self._cluster = cluster
        self._say = say
        self._lock = threading.Lock()
        self._table = widgets.HTML()
        self._list = widgets.Select(options=[], rows=8, layout=widgets.Layout(width="auto"))
        self._list.add_class("dtensor-names")
        self._values = widgets.Checkbox(value=False, description="values (heat map)", indent=False)
        self._picture = widgets.HTML()
        again = widgets.Button(description="Refresh", icon="refresh", layout=widgets.Layout(width="auto"))
        again.on_click(lambda _: self.refresh())
        self._list.observe(self._on_choice, "value")
        self._values.observe(self._on_choice, "value")
        side = widgets.VBox([widgets.HTML("<b>Choose a variable</b>"), self._list, self._values, again])
        side.layout.width = "20em"
        self.box = widgets.VBox([self._table, widgets.HBox([side, self._picture])])

    def refresh(self) -> None:
        """Ask the clients again."""
        cluster = self._cluster()
        with self._lock:
            try:
                found = over_clients(cluster.describe()) if cluster is not None else []
            except DTensorMagicError as error:
                self._say(str(error), problem=True)
                return
            self._table.value = names.html(found) if found else "<small>The clients hold no variables yet.</small>"
            options = [(_label(one), one.name) for one in found]
            chosen = self._list.value
            if tuple(self._list.options) != tuple(options):
                # New options choose the first by themselves, which is no user's choice.
                self._list.unobserve(self._on_choice, "value")
                self._list.options = options
                self._list.value = chosen if chosen in {one.name for one in found} else None
                self._list.observe(self._on_choice, "value")
        self._draw()

    def _on_choice(self, _: Any) -> None:
        self._draw()

    def _draw(self) -> None:
        """Draw the chosen variable's layout."""
        cluster, name = self._cluster(), self._list.value
        if cluster is None or name is None:
            self._picture.value = ""
            return
        try:
            variables = gather(cluster.describe([name], values=self._values.value))
            state: ClusterState | None = cluster.state(sample=False)
        except DTensorMagicError as error:
            self._picture.value = f'<div class="dtensor-problem" role="alert">✗ {escape(str(error))}</div>'
            return
        self._picture.value = layout.svg(variables, state, themed=True)


def _label(name: NameState) -> str:
    return f"{name.name}{'  ≠' if name.difference else ''}"
