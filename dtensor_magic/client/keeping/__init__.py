"""Keep a client's variables over a restart: write them into a folder, and read them in a fresh client.

Each client writes what its namespace holds, and its own shards of DTensors. A fresh client reads the host values of
its predecessor (or of a living peer, where that one died) and the shards that its devices need, whoever wrote them;
so a mesh of another shape is served too.
"""

from __future__ import annotations

from .restoring import bind, restore
from .salvaging import salvage

__all__ = ["bind", "restore", "salvage"]
