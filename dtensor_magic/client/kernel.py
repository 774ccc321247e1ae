"""The client's kernel: ipykernel's, with a status page, and without what a client does not need."""

from __future__ import annotations

from typing import Any

from ipykernel.ipkernel import IPythonKernel
from traitlets import Instance

from ..agent.status import StatusWriter
from ..state import Phase


class DTensorKernel(IPythonKernel):  # type: ignore[misc]
    """A kernel that keeps its client's status page current."""

    status = Instance(StatusWriter, allow_none=True)

    #: ipykernel sleeps after each cell in case its output lags behind the reply; our driver waits for both.
    _execute_sleep = 0.0

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> Any:
        """Run a cell, saying on the status page that one runs."""
        if self.status is None or silent:
            return await super().do_execute(code, silent, *args, **kwargs)
        count = self.shell.execution_count
        text = code.lstrip().partition("\n")[0][:200]
        self.status.update(Phase.BUSY, cell=f"In[{count}]", text=text)
        try:
            return await super().do_execute(code, silent, *args, **kwargs)
        finally:
            self.status.update(Phase.READY)
