"""What the panel knows of the kernel that it lives in: whether it is busy, and hears clicks meanwhile."""

from __future__ import annotations

from typing import Any

import ipykernel


class FrontEnd:
    """Tells whether clicks reach us now.

    Parameters
    ----------
    shell : InteractiveShell
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._busy = False
        shell.events.register("pre_execute", self._begin)
        shell.events.register("post_execute", self._end)

    def _begin(self) -> None:
        self._busy = True

    def _end(self) -> None:
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether the notebook kernel runs a cell."""
        return self._busy

    def close(self) -> None:
        """Forget the shell."""
        self._shell.events.unregister("pre_execute", self._begin)
        self._shell.events.unregister("post_execute", self._end)

    def hear_while_busy(self, widget: Any) -> None:
        """Have what the page sends to `widget` served by its subshell, also while a cell runs.

        ipykernel 7.4 answers a page on the shell that last spoke on that widget's behalf, which for one made in a
        cell is the shell that runs cells.
        """
        comm: Any = getattr(widget, "comm", None)
        if hasattr(comm, "_reply_subshell_for"):
            comm._reply_subshell_for = lambda _data, asked: asked  # noqa: SLF001 - there is no public way

    def deaf(self) -> str:
        """Say why clicks are not heard now; empty where they are.

        A kernel serves its front end's messages, clicks too, on the thread that runs cells, unless both know
        subshells (ipykernel 7, JupyterLab 4.4).
        """
        if not self._busy or self._has_subshell():
            return ""
        if self._knows_subshells():
            return "this front end sends clicks to the thread that runs cells"
        return f"this kernel (ipykernel {ipykernel.__version__}) has one thread for cells and clicks"

    def _knows_subshells(self) -> bool:
        return bool(getattr(getattr(self._shell, "kernel", None), "_supports_kernel_subshells", False))

    def _has_subshell(self) -> bool:
        if not self._knows_subshells():
            return False
        return bool(self._shell.kernel.shell_channel_thread.manager.list_subshell())
