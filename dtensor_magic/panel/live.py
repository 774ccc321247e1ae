"""Show the panel, or one live picture, in the notebook; what a terminal shows instead."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets
from IPython.core.getipython import get_ipython

from ..cluster import Cluster
from ..errors import DTensorMagicError, SpecError
from ..state import ClusterState
from ..views import mesh
from .following import Follower
from .kernels import FrontEnd
from .panel import Panel

_VIEW = "application/vnd.jupyter.widget-view+json"


def show_panel(panel: Panel) -> None:
    """Show the panel where there is a notebook.

    Raises
    ------
    SpecError
        In a terminal, which has no widgets.
    """
    _show(panel.box, panel.as_text())


def live_mesh(cluster: Cluster, name: str | None) -> None:
    """Show the meshes of `cluster`, or the one called `name`, and keep the picture current while it is seen."""
    from ..picture_magics import find_meshes

    picture = widgets.HTML()

    def show(followed: Cluster | None, state: ClusterState | None) -> None:
        if state is None or followed is not cluster:
            picture.value = f"<small>{escape(cluster.name)} was shut down.</small>"
            return
        try:
            found = find_meshes(cluster, state, name)
        except DTensorMagicError as error:
            picture.value = f"<small>{escape(str(error))}</small>"
            return
        picture.value = "".join(mesh.svg(state, one, themed=True) for one in found)

    state = cluster.state()
    plain = "\n".join(mesh.text(state, one) for one in find_meshes(cluster, state, name))

    def say(message: str, **_: Any) -> None:
        picture.value = f"<small>{escape(message)}</small>"

    front_end = FrontEnd(get_ipython())
    follower = Follower(show, say, front_end)
    follower.chosen = cluster.name
    box = widgets.VBox([picture, follower.presence.widget])
    front_end.hear_while_busy(box)
    box._view_count = 0  # noqa: SLF001 - a trait that ipywidgets documents, with this name
    box.observe(lambda change: follower.views(change["new"] or 0), "_view_count")
    follower.look()
    _show(box, plain)


def _show(widget: Any, plain: str) -> None:
    from IPython.display import display

    if not hasattr(get_ipython(), "kernel"):
        raise SpecError(
            "the panel needs a notebook; here %dtensor_status, %dtensor_mesh, %dtensor_timeline and "
            "%dtensor_variables show the same as text."
        )
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({_VIEW: view, "text/plain": plain}, raw=True)
