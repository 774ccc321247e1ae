"""The layout picture: which part of a tensor each device holds."""

from __future__ import annotations

from .picture import svg
from .terminal import text

__all__ = ["svg", "text"]
