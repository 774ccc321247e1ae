"""Cells that run while the notebook goes on: ``%%dtensor --no-wait``."""

from __future__ import annotations

import contextvars
import sys
import threading
from typing import TYPE_CHECKING, Any

from .errors import ClientsInterruptedError, DTensorMagicError
from .execution.turns import CancelledWhileQueued, Ticket

if TYPE_CHECKING:
    from .cluster import CellResult, Cluster


class CellHandle:
    """A cell that was sent without waiting. Its output appears under the cell that sent it, as it comes.

    Parameters
    ----------
    cluster : Cluster
    code : str
    options : dict
        For :meth:`Cluster.run`.
    """

    def __init__(self, cluster: Cluster, code: str, options: dict[str, Any]) -> None:
        self._cluster = cluster
        self._code = code
        self._options = options
        self._ticket = Ticket()
        self._result: CellResult | None = None
        self._error: BaseException | None = None
        # The thread writes in this cell's context, so that a notebook shows its output here.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True, name="dtensor-cell")
        self._thread.start()
        # Cells that are sent after this one stand behind it.
        self._ticket.entered.wait()

    def _run(self) -> None:
        try:
            self._result = self._cluster.run(self._code, ticket=self._ticket, **self._options)
        except CancelledWhileQueued as error:
            self._error = error
        except DTensorMagicError as error:
            self._error = error
            if not isinstance(error, ClientsInterruptedError):
                sys.stderr.write("\n".join(error._render_traceback_()) + "\n")
                sys.stderr.flush()
        except BaseException as error:  # noqa: BLE001 - kept for whoever waits
            self._error = error
        finally:
            self._ticket.entered.set()

    @property
    def state(self) -> str:
        """``queued``, ``running``, ``done``, ``failed`` or ``cancelled``."""
        if self._thread.is_alive():
            return "running" if self._ticket.started.is_set() else "queued"
        if self._error is None:
            return "done"
        return "cancelled" if self._ticket.cancelled.is_set() else "failed"

    def wait(self, timeout: float | None = None) -> CellResult:
        """Return the cell's result when it is over.

        Parameters
        ----------
        timeout : float, optional
            Seconds.

        Raises
        ------
        TimeoutError
            If it is not over by then; it runs on.
        DTensorMagicError
            What the cell raised.
        CancelledWhileQueued
            If it was taken back before its turn.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the cell is still {self.state} after {timeout:g} s; it goes on.")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """Take the cell back if its turn has not come; interrupt it if it runs."""
        self._ticket.cancelled.set()
        if self._thread.is_alive() and self._ticket.started.is_set():
            self._cluster.interrupt()
        self._thread.join(10)

    def __repr__(self) -> str:
        first = self._code.strip().partition("\n")[0][:60]
        return f"<cell on {self._cluster.name}, {self.state}: {first}>"
