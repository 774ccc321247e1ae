"""`Cluster`: start, run, restart, stop. What the magics, the command line and scripts use."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import ClusterStateError, SpecError
from .records import find_record, free_name, name_taken
from .spec import ClusterSpec
from .state import ClusterState, client_ranges
from .transfers import Transfers

if TYPE_CHECKING:
    from types import TracebackType

    from .execution.turns import Ticket
    from .handles import CellHandle
    from .keeping import KeepReport
    from .plan import ClusterPlan
    from .variables import VariableState

#: How a cell's output is shown: alike lines once, every client's, the first client's alone, or none.
OUTPUT_MODES = ("fold", "each", "first", "none")

Progress = Callable[[ClusterState], None]


@dataclass(frozen=True)
class CellResult:
    """A cell that ended well.

    Attributes
    ----------
    clients : tuple of int
        Those that it ran on.
    seconds : float
        From sending it to its last output.
    results : dict of int to dict
        The value of its last expression, as MIME bundles by client; clients without one are missing.
    """

    clients: tuple[int, ...]
    seconds: float
    results: dict[int, dict[str, Any]] = field(default_factory=dict)


class Cluster(Transfers):
    """DTensor clients that run the same cells.

    Made by :meth:`start`; as a context manager it shuts down at the end.

    Attributes
    ----------
    name : str
    spec : ClusterSpec
        What was asked for.
    plan : ClusterPlan
        What was settled from it.

    Examples
    --------
    >>> with Cluster.start("CPU", clients=4, mesh="batch=4") as cluster:  # doctest: +SKIP
    ...     cluster.run("print(client_id, mesh.shape())")
    """

    def __init__(self, name: str, spec: ClusterSpec, plan: ClusterPlan) -> None:
        self.name = name
        self.spec = spec
        self.plan = plan
        #: The cells that a restart runs again, in order (``%%dtensor --setup``).
        self.setup_cells: list[str] = []

    @staticmethod
    def start(
        device_type: str | None = None,
        *,
        progress: Progress | None = None,
        environ: Mapping[str, str] = os.environ,
        **options: Any,
    ) -> Cluster:
        """Start a cluster and return it when all clients are ready.

        Parameters
        ----------
        device_type : str, optional
            CPU, GPU or TPU; without it the preferred one.
        progress : callable, optional
            Called with the state while clients come up.
        environ : mapping, optional
            The environment to read ``DTENSOR_*`` from and to give to clients.
        **options
            The other fields of `ClusterSpec`: ``clients``, ``mesh``, ``logical_cpus``, ...

        Raises
        ------
        SpecError
            Before anything starts, if what is asked cannot be.
        StartError
            If a client does not come up; nothing is left running.
        """
        try:
            spec = ClusterSpec(device_type=device_type, **options)
        except TypeError as error:
            raise SpecError(f"Cluster.start: {str(error).partition('() ')[2] or error}") from None
        return start_cluster(spec, environ, progress)

    #: Seconds that peers of a failed client may go on before those that wait for it are released.
    fail_grace: float = 1.0

    @property
    def closed_reason(self) -> str:
        """Why collectives cannot run any more; empty while they can."""
        return ""

    @property
    def clients(self) -> tuple[int, ...]:
        """The ids of the clients that take cells."""
        return tuple(range(self.plan.clients))

    @property
    def device_type(self) -> str:
        """CPU, GPU or TPU."""
        return self.plan.device_type

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the cluster is there: started, and not shut down."""

    @abstractmethod
    def state(self, *, sample: bool = True) -> ClusterState:
        """Return the state now; with `sample`, memory and CPU of each client too."""

    @abstractmethod
    def run(
        self,
        code: str,
        *,
        on: Iterable[int] | None = None,
        timeout: float | None = None,
        output: str = "fold",
        setup: bool = False,
        ticket: Ticket | None = None,
    ) -> CellResult:
        """Run a cell on all clients, or those named, and show what they put out.

        While another cell runs, from another thread, this one waits for its turn, and says so.

        Parameters
        ----------
        code : str
            A cell, with IPython's syntax.
        on : iterable of int, optional
        timeout : float, optional
            Seconds, after which clients that have not finished are interrupted. No limit by default.
        output : str
            ``fold``, ``each``, ``first`` or ``none``.
        setup : bool
            Note the cell, if it ends well, as one that a restart runs again.
        ticket : Ticket, optional
            Tells when the cell stands in the queue and when its turn has come, and can take it back.

        Raises
        ------
        CellError
            With the first error's remote traceback.
        ClientDiedError
            If a client's process ended.
        CellTimeoutError
            After `timeout`.
        """

    def run_later(self, code: str, **options: Any) -> CellHandle:
        """Run a cell while this thread goes on: returns at once, with a handle to wait for it or cancel it.

        Parameters
        ----------
        code : str
        **options
            As for :meth:`run`.
        """
        from .handles import CellHandle

        self.check_cell(code, options.get("timeout"), options.get("output", "fold"))
        self.check_clients(options.get("on"))
        return CellHandle(self, code, options)

    @abstractmethod
    def interrupt(self) -> dict[int, str]:
        """Interrupt the cell that runs: interrupt, then abort its collectives, then kill, within some 3 seconds.

        Returns
        -------
        dict of int to str
            What came of each client, in words.
        """

    @abstractmethod
    def stacks(self) -> dict[int, str]:
        """Return where each client's main thread stands, as text by client."""

    @abstractmethod
    def describe(
        self, names: Sequence[str] | None = None, *, values: bool = False
    ) -> dict[int, list[VariableState]]:
        """Tell what names hold on the clients: shapes, data types and layouts, by client.

        Works while a cell runs, but for values. No collective takes part.

        Parameters
        ----------
        names : sequence of str, optional
            Variables, or their attributes (``model.kernel``); all of the user's own by default.
        values : bool
            Whether to read values too, averaged over blocks, for heat maps.

        Raises
        ------
        SpecError
            For a name that no client has.
        ClusterStateError
            If a client does not answer, or, for values, while a cell runs.
        """

    @abstractmethod
    def restart(
        self,
        *,
        clients: int | None = None,
        mesh: str | None = None,
        keep: Sequence[str] | None = None,
        replay: bool = False,
        progress: Progress | None = None,
    ) -> KeepReport | None:
        """Replace all clients by new ones.

        Parameters
        ----------
        clients : int, optional
            Another client count.
        mesh : str, optional
            Another mesh.
        keep : sequence of str, optional
            Names of variables to bring over, or ``["all"]``; by default all are lost. DTensors keep their layout,
            or are laid out anew over another mesh.
        replay : bool
            Run the set-up cells again; with `keep` they are in any case, before the variables come back.

        Returns
        -------
        KeepReport or None
            With `keep`: what was kept, and what was lost and why.
        """

    @abstractmethod
    def logs(self, client: int, size: int = 4000) -> str:
        """Return the last `size` bytes that the client's process wrote to its own output and error streams."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the cluster and everything that belongs to it. Twice is no error."""

    def check_clients(self, on: Iterable[int] | None) -> tuple[int, ...]:
        """Return `on`, checked; all clients for None.

        Raises
        ------
        SpecError
            For a client that there is not.
        """
        if on is None:
            return self.clients
        chosen = tuple(sorted(set(on)))
        unknown = [client for client in chosen if client not in self.clients]
        if unknown:
            raise SpecError(
                f"client {client_ranges(unknown)} is not in {self.name}; it has {client_ranges(self.clients)}."
            )
        if not chosen:
            raise SpecError(f"no client is named; {self.name} has {client_ranges(self.clients)}.")
        return chosen

    def check_alive(self) -> None:
        """Raise, if the cluster was shut down."""
        if not self.alive:
            raise ClusterStateError(f"{self.name} is shut down; %dtensor_init starts a new one.")

    def check_cell(self, code: str, timeout: float | None, output: str) -> None:
        """Raise, if such a cell cannot be run."""
        self.check_alive()
        if not code.strip():
            raise SpecError("the cell is empty; write the code that the clients should run.")
        if output not in OUTPUT_MODES:
            raise SpecError(f"output: {output!r} is not one; it is {', '.join(OUTPUT_MODES)}.")
        if timeout is not None and timeout <= 0:
            raise SpecError(f"timeout: {timeout:g} is not a time; give seconds above 0, or none.")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        what = f"{self.plan.clients} {self.device_type} client{'s' * (self.plan.clients != 1)}"
        return f"<Cluster {self.name}: {what}{'' if self.alive else ', shut down'}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        if not self.alive:
            return {"text/plain": repr(self)}
        from .views import html, text

        state = self.state()
        return {"text/plain": text.card(state), "text/html": html.card(state)}


class Registry:
    """The clusters of this process, by name, in the order of their start."""

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}
        self._lock = threading.Lock()

    def add(self, cluster: Cluster) -> None:
        """Take `cluster` in; it is the current one from now on."""
        with self._lock:
            self._clusters.pop(cluster.name, None)
            self._clusters[cluster.name] = cluster

    def remove(self, cluster: Cluster) -> None:
        """Drop `cluster`."""
        with self._lock:
            if self._clusters.get(cluster.name) is cluster:
                del self._clusters[cluster.name]

    def all(self) -> list[Cluster]:
        """Return the clusters, oldest first."""
        with self._lock:
            return list(self._clusters.values())

    def current(self) -> Cluster | None:
        """Return the cluster that cells run on: the one that was started last."""
        clusters = self.all()
        return clusters[-1] if clusters else None

    def free_name(self) -> str:
        """Return a name that no cluster of this process or this user has."""
        return free_name(cluster.name for cluster in self.all())

    def same_request(self, spec: ClusterSpec) -> Cluster | None:
        """Return the cluster that `spec` started, if it is still there."""
        return next((cluster for cluster in self.all() if cluster.spec == spec and cluster.alive), None)

    def get(self, name: str) -> Cluster | None:
        """Return the cluster `name`."""
        return self._clusters.get(name)


registry = Registry()


def check_name_free(name: str) -> None:
    """Raise a `SpecError`, if a cluster of this process or this user has `name`."""
    if registry.get(name) is not None or find_record(name) is not None:
        raise SpecError(name_taken(name))


def start_cluster(spec: ClusterSpec, environ: Mapping[str, str], progress: Progress | None = None) -> Cluster:
    """Start what `spec` asks for; the same request again returns the cluster that runs.

    Raises
    ------
    SpecError, StartError
        As :meth:`Cluster.start`.
    """
    from .background import BackgroundCluster
    from .notebook import NotebookCluster

    running = registry.same_request(spec)
    if running is not None:
        registry.add(running)
        return running
    plan = spec.plan(environ)
    kind = BackgroundCluster if plan.mode == "clients" else NotebookCluster
    cluster: Cluster = kind.launch(spec, plan, environ, progress)
    registry.add(cluster)
    return cluster
