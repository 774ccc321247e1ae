"""Multi-client TensorFlow DTensor in one Jupyter notebook.

``%load_ext dtensor_magic`` registers the magics; :class:`Cluster` is the same in Python.
Everything is imported late: loading the extension must not slow the notebook's first cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .cluster import Cluster
    from .per_client import PerClient

__all__ = ["Cluster", "PerClient", "__version__", "load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magics with `shell` and warm the template up in the background."""
    from .extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Undo :func:`load_ipython_extension`: end the clusters and agents, remove the magics."""
    from .extension import unload

    unload(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell jupyter_server of our extension."""
    from .server.app import DTensorServer

    return [{"module": "dtensor_magic", "app": DTensorServer}]


def __getattr__(name: str) -> Any:
    if name == "Cluster":
        from .cluster import Cluster

        return Cluster
    if name == "PerClient":
        from .per_client import PerClient

        return PerClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
