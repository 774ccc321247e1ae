"""Where the clients stand while they come up: one line that is redrawn in place."""

from __future__ import annotations

import sys
from typing import Any

from ..state import ClusterState
from . import text


class StartProgress:
    """Shows progress in a notebook's output, or on a terminal's line."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._width = 0

    def update(self, state: ClusterState) -> None:
        """Show where the clients stand."""
        self._show(text.progress(state))

    def finish(self, line: str) -> None:
        """Replace the line by its last one."""
        self._show(line)
        if self._on_terminal():
            sys.stdout.write("\n")

    def abandon(self) -> None:
        """Clear the line: an error follows."""
        if self._handle is None and not self._width:
            return
        self._show("")

    def _show(self, line: str) -> None:
        if self._on_terminal():
            sys.stdout.write("\r" + line.ljust(self._width))
            sys.stdout.flush()
            self._width = len(line)
        elif self._in_kernel():
            self._display(line)

    def _display(self, line: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": line}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    @staticmethod
    def _on_terminal() -> bool:
        return sys.stdout.isatty() and not StartProgress._in_kernel()

    @staticmethod
    def _in_kernel() -> bool:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        return shell is not None and hasattr(shell, "kernel")
