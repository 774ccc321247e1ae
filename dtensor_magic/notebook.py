"""A cluster whose client is the notebook kernel itself: local mode, or one client of a larger job."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from .client.describe import describe, meshes
from .client.initialise import Initialised, initialise
from .client.parts import read_parts, reader_of
from .client.rendezvous import await_peers
from .cluster import CellResult, Cluster, Progress, check_name_free, registry
from .describing import read_descriptions
from .errors import ContextLiveError, SpecError, StartError, TransferError
from .gathering import Pulled
from .jobs import check_ports_free
from .plan import ClusterPlan
from .shards import MissingPartError, assemble, numpy_type
from .spec import ClusterSpec
from .state import ClientState, ClusterPhase, ClusterState, Phase
from .variables import VariableState

if TYPE_CHECKING:
    from .execution.turns import Ticket
    from .handles import CellHandle
    from .keeping import KeepReport


class NotebookCluster(Cluster):
    """DTensor in this very process."""

    def __init__(
        self, name: str, spec: ClusterSpec, plan: ClusterPlan, environ: Mapping[str, str], ready: Initialised
    ) -> None:
        super().__init__(name, spec, plan)
        self._environ = environ
        self._ready: Initialised | None = ready
        self._created = time.time()
        self._process = psutil.Process()
        self._pushed: dict[str, Any] = {}
        #: Where cells run in a plain script, which has no notebook's namespace.
        self._namespace: dict[str, Any] = {"__name__": "__main__"}

    @classmethod
    def launch(
        cls, spec: ClusterSpec, plan: ClusterPlan, environ: Mapping[str, str], progress: Progress | None
    ) -> NotebookCluster:
        """Initialise DTensor here."""
        if spec.name:
            check_name_free(spec.name)
        running = next((cluster for cluster in registry.all() if isinstance(cluster, NotebookCluster)), None)
        if running is not None and running.alive and _is_initialised():
            if running.plan.multi_client:
                raise ContextLiveError(
                    "this kernel is a client of a multi-client system already, which TensorFlow cannot shut down; "
                    "restart the kernel for another, or use background clients (--background or -n)."
                )
            running.shutdown()
        if plan.jobs:
            check_ports_free((plan.jobs[plan.client_id],))
        _make_room(spec)
        client = plan.client_id
        told = plan.client(client, plan.jobs)
        if plan.multi_client:
            if progress is not None:
                progress(_starting(spec.name or "dtensor", plan, client))
            await_peers(plan.jobs, client, spec.timeout)
        try:
            ready = initialise(told)
        except Exception as error:
            raise StartError(_explain(error, plan), client=client) from error
        name = spec.name or registry.free_name()
        cluster = cls(name, spec, plan, environ, ready)
        cluster.push_names()
        return cluster

    @property
    def clients(self) -> tuple[int, ...]:
        """This kernel's own client id."""
        return (self.plan.client_id,)

    @property
    def alive(self) -> bool:
        """Whether it was not shut down."""
        return self._ready is not None

    def push_names(self) -> None:
        """Put these names into the notebook's namespace, where there is a notebook."""
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        assert self._ready is not None
        self._pushed = self._ready.names(self.clients[0], self.plan.clients)
        self._namespace.update(self._pushed)
        if shell is not None:
            shell.push(self._pushed, interactive=False)

    def _take_names_back(self) -> None:
        """Remove from the notebook's namespace what :meth:`push_names` put there, where it is still that."""
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        for name, value in self._pushed.items():
            if shell is not None and name not in ("tf", "dtensor") and shell.user_ns.get(name) is value:
                del shell.user_ns[name]
        self._pushed = {}

    def state(self, *, sample: bool = True) -> ClusterState:
        """Return the state of this process."""
        state = _starting(self.name, self.plan, self.clients[0])
        state.created = self._created
        client = state.clients[0]
        if self._ready is None:
            state.phase, client.phase = ClusterPhase.STOPPED, Phase.DEAD
            return state
        state.phase, client.phase, client.since = ClusterPhase.READY, Phase.READY, self._created
        client.devices = self._ready.devices
        state.meshes = meshes(self._shell())
        if sample:
            memory = self._process.memory_full_info()
            client.rss, client.pss = memory.rss, getattr(memory, "pss", None)
            client.cpu = self._process.cpu_percent()
        return state

    def run(
        self,
        code: str,
        *,
        on: Iterable[int] | None = None,
        timeout: float | None = None,
        output: str = "fold",
        setup: bool = False,
        ticket: Ticket | None = None,  # noqa: ARG002 - there is no queue here
    ) -> CellResult:
        """Run a cell in the notebook's own namespace; see :meth:`Cluster.run`.

        Raises
        ------
        SpecError
            With a `timeout`: a cell of the notebook kernel itself can only be interrupted by hand.
        Exception
            Whatever the cell raises, as it is.
        """
        self.check_cell(code, timeout, output)
        clients = self.check_clients(on)
        if timeout is not None:
            raise SpecError("--timeout needs background clients (--background or -n); interrupt this cell by hand.")
        start = time.monotonic()
        with _quiet() if output == "none" else contextlib.nullcontext():
            bundle = _run_here(code, self._namespace)
        if setup and code not in self.setup_cells:
            self.setup_cells.append(code)
        return CellResult(clients, time.monotonic() - start, {} if bundle is None else {clients[0]: bundle})

    def push(self, values: Mapping[str, Any], on: Iterable[int] | None = None) -> None:
        """Bind values in the notebook's own namespace; see :meth:`Cluster.push`."""
        self.check_alive()
        self.check_names(values)
        self.check_clients(on)
        self._names().update(values)

    def fetch(self, names: Sequence[str], on: Iterable[int] | None = None) -> dict[str, Pulled]:
        """Return what names hold in the notebook's own namespace; see :meth:`Cluster.pull`."""
        self.check_alive()
        wanted = self.check_names(names)
        clients = self.check_clients(on)
        namespace = self._names()
        missing = [name for name in wanted if name not in namespace]
        if missing:
            names_text = ", ".join(missing)
            raise TransferError(names_text, f"there is no {names_text} in this notebook, which is the client.")
        return {name: _fetched(name, namespace[name], clients) for name in wanted}

    def _names(self) -> dict[str, Any]:
        """Return the namespace that cells run in."""
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        found: dict[str, Any] = self._namespace if shell is None else shell.user_ns
        return found

    def run_later(self, code: str, **options: Any) -> CellHandle:  # noqa: ARG002
        """Refuse: the notebook kernel runs one cell at a time."""
        raise SpecError("--no-wait needs background clients (--background or -n).")

    def interrupt(self) -> dict[int, str]:
        """Refuse: what runs here is the notebook's own cell, which the stop button interrupts."""
        raise SpecError("the client is the notebook kernel itself; its stop button interrupts the cell.")

    def stacks(self) -> dict[int, str]:
        """Refuse: whoever asks here runs here."""
        raise SpecError("the client is the notebook kernel itself, whose stack is this cell's.")

    def describe(
        self, names: Sequence[str] | None = None, *, values: bool = False
    ) -> dict[int, list[VariableState]]:
        """Tell what names hold here; see :meth:`Cluster.describe`."""
        found = describe(self._shell(), names, values=values)
        return read_descriptions(self.name, names, {self.clients[0]: found})

    def _shell(self) -> Any:
        """Return what holds the names: the notebook's shell, or a stand-in where there is none."""
        from IPython.core.getipython import get_ipython

        return get_ipython() or SimpleNamespace(user_ns=self._namespace)

    def restart(
        self,
        *,
        clients: int | None = None,
        mesh: str | None = None,
        keep: Sequence[str] | None = None,
        replay: bool = False,
        progress: Progress | None = None,  # noqa: ARG002 - it takes no time
    ) -> KeepReport | None:
        """Shut the local system down and initialise it again; see :meth:`Cluster.restart`."""
        if clients is not None and clients > 1:
            raise SpecError(f"this client is the notebook kernel itself; %dtensor_init -n {clients} starts more.")
        if keep is not None:
            raise SpecError("--keep needs background clients (--background or -n): this kernel is not replaced.")
        spec = replace(self.spec, mesh=self.spec.mesh if mesh is None else mesh)
        plan = spec.plan(self._environ)
        if self.plan.multi_client:
            raise ContextLiveError("TensorFlow cannot shut a multi-client system down; restart the kernel.")
        self.shutdown()
        self.spec, self.plan = spec, plan
        self._ready = initialise(plan.client(0, ()))
        self._created = time.time()
        registry.add(self)
        self.push_names()
        for cell in self.setup_cells if replay else ():
            self.run(cell)
        return None

    def logs(self, client: int, size: int = 4000) -> str:  # noqa: ARG002
        """Return where the output went: this kernel's own."""
        self.check_clients([client])
        return "The client is the notebook kernel itself; its output is in the notebook and in the server's log."

    def shutdown(self) -> None:
        """Shut the local system down. A multi-client one ends with the kernel."""
        if self._ready is None:
            return
        self._ready = None
        self._take_names_back()
        registry.remove(self)
        if not self.plan.multi_client and _is_initialised():
            from tensorflow.experimental import dtensor

            dtensor.shutdown_accelerator_system()


def _fetched(name: str, value: Any, clients: tuple[int, ...]) -> Pulled:
    """Return a value as it is, and of a DTensor the global array."""
    found = reader_of(value)
    if found is None:
        return Pulled(value, clients)
    try:
        stored, parts = read_parts(*found)
        whole = tuple((0, size) for size in stored.shape)
        # A copy: what tensors are made of is not to be written to.
        return Pulled(np.array(assemble(whole, numpy_type(stored.dtype), parts)), clients, stored)
    except MissingPartError as error:
        raise TransferError(
            name,
            f"{name} cannot be pulled: its part from index {error.place} on is on another client of this job, "
            "which this notebook does not drive.",
        ) from error
    except TypeError as error:
        raise TransferError(name, f"{name} cannot be pulled: {error}.") from error


def _is_initialised() -> bool:
    from tensorflow.dtensor.python import accelerator_util

    return bool(accelerator_util.is_initialized())


def context_live() -> bool:
    """Whether TensorFlow has a context in this process, which DTensor must set up itself."""
    from tensorflow.python.eager import context

    current = context.context_safe()
    return current is not None and bool(current._initialized)  # noqa: SLF001 - TensorFlow has no public question


def _make_room(spec: ClusterSpec) -> None:
    """Shut down a local system that somebody else initialised, or say why that cannot be.

    Raises
    ------
    ContextLiveError
        With both ways out.
    """
    if _is_initialised():
        from tensorflow.experimental import dtensor

        if dtensor.num_clients() > 1 or os.environ.get("DTENSOR_JOBS"):
            raise ContextLiveError(
                "this kernel initialised a multi-client system already, which TensorFlow cannot shut down; "
                "restart the kernel, or use background clients (--background or -n)."
            )
        dtensor.shutdown_accelerator_system()
    elif context_live() and not spec.reset_context:
        raise ContextLiveError(
            "TensorFlow is already initialised in this kernel, so DTensor cannot be. Two ways out: "
            "--reset-context resets it (existing tensors become invalid), "
            "--background runs DTensor in a client of its own and leaves this kernel alone."
        )


def _explain(error: Exception, plan: ClusterPlan) -> str:
    reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    if plan.multi_client:
        return f"TensorFlow could not initialise this client: {reason}. Its context stays live: restart the kernel."
    return f"TensorFlow could not initialise DTensor here: {reason}"


def _starting(name: str, plan: ClusterPlan, client: int) -> ClusterState:
    return ClusterState(
        name=name,
        mode="multi-client" if plan.multi_client else "local",
        device_type=plan.device_type,
        clients=[
            ClientState(
                client,
                host=socket.gethostname(),
                pid=os.getpid(),
                address=plan.jobs[client] if plan.jobs else "",
                phase=Phase.INITIALISING,
                since=time.time(),
            )
        ],
        created=time.time(),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    from IPython.utils.capture import capture_output

    with capture_output():
        yield


def _run_here(code: str, namespace: dict[str, Any]) -> dict[str, Any] | None:
    """Run a cell in the notebook's shell, or in `namespace` where there is none.

    Returns
    -------
    dict or None
        The MIME bundle of its last expression's value. Its exception comes out, instead of being shown.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        exec(compile(code, "<cell>", "exec"), namespace)  # noqa: S102 - running the user's cell is what this is for
        return None
    shown = shell.showtraceback, shell.showsyntaxerror
    shell.showtraceback = shell.showsyntaxerror = lambda *_, **__: None
    try:
        result = shell.run_cell(code, store_history=False)
    finally:
        shell.showtraceback, shell.showsyntaxerror = shown
    result.raise_error()
    if result.result is None:
        return None
    bundle: dict[str, Any] = shell.display_formatter.format(result.result)[0]
    return bundle
