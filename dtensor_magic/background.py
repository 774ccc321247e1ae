"""A cluster of background kernels, each a DTensor client."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from .clients import ClientGroup
from .cluster import CellResult, Cluster, Progress, check_name_free, registry
from .errors import AgentError, ClientsInterruptedError, ClusterStateError
from .execution.cell import CellRun
from .execution.watch import CellWatch, follow_with_timeout
from .jobs import check_ports_free
from .launchers.local import local_agent
from .loop import driver
from .plan import ClusterPlan
from .records import free_name
from .spec import ClusterSpec
from .state import ClusterState

#: Seconds between two looks at the clients while they come up.
_PROGRESS_INTERVAL = 0.1

#: Seconds that interrupted clients get to end their cell.
_INTERRUPT_GRACE = 5.0


class BackgroundCluster(Cluster):
    """Clients in kernels of their own, started through this machine's agent."""

    def __init__(self, name: str, spec: ClusterSpec, plan: ClusterPlan, environ: Mapping[str, str]) -> None:
        super().__init__(name, spec, plan)
        self._environ = dict(environ)
        self._group: ClientGroup | None = None
        self._busy = threading.Lock()
        self._ended_by = ""

    @classmethod
    def launch(
        cls, spec: ClusterSpec, plan: ClusterPlan, environ: Mapping[str, str], progress: Progress | None
    ) -> BackgroundCluster:
        """Start the clients."""
        if spec.name:
            check_name_free(spec.name)
        check_ports_free(plan.jobs)
        cluster = cls(spec.name or free_name(), spec, plan, environ)
        cluster._start(progress)
        return cluster

    def _start(self, progress: Progress | None) -> None:
        agent = local_agent()
        group = ClientGroup(
            agent,
            self.name,
            self.plan,
            {**self._environ, **self.spec.env},
            self.spec.start_method,
            isolate=self.spec.isolate,
        )
        future = driver().submit(group.start())
        try:
            while not future.done():
                concurrent.futures.wait([future], timeout=_PROGRESS_INTERVAL)
                if progress is not None and not future.done():
                    _report(group, progress)
            future.result()
        except BaseException:
            future.cancel()
            driver().call(group.settled())
            raise
        self._group = group
        agent.when_closed(self.name, self._closed_elsewhere)

    def _closed_elsewhere(self, by: str) -> None:
        self._ended_by = by
        group, self._group = self._group, None
        registry.remove(self)
        if group is not None:
            driver().submit(group.close(grace=0))

    @property
    def alive(self) -> bool:
        """Whether the clients' agent holds the cluster."""
        return self._group is not None and self._group.agent.alive

    def _members(self) -> ClientGroup:
        if self._group is None:
            by = f" by {self._ended_by}" if self._ended_by else ""
            raise ClusterStateError(f"{self.name} was shut down{by}; %dtensor_init starts a new one.")
        if not self._group.agent.alive:
            raise ClusterStateError(
                f"the host agent of {self.name} is gone, and its clients with it; "
                "%dtensor_shutdown clears up, %dtensor_init starts a new cluster."
            )
        return self._group

    def state(self, *, sample: bool = True) -> ClusterState:
        """Return the agent's view."""
        return driver().call(self._members().state(sample=sample))

    def run(
        self,
        code: str,
        *,
        on: Iterable[int] | None = None,
        timeout: float | None = None,
        output: str = "fold",
    ) -> CellResult:
        """Run a cell on the clients; see :meth:`Cluster.run`."""
        group = self._members()
        self.check_cell(code, timeout, output)
        run = CellRun(code, self.check_clients(on))
        if not self._busy.acquire(blocking=False):
            raise ClusterStateError(f"{self.name} is busy with another cell; wait for it, or interrupt it.")
        try:
            driver().loop.call_soon_threadsafe(group.send, run)
            watch = CellWatch(run, self.name, output, labelled=self.plan.clients > 1)
            try:
                if timeout is None:
                    watch.follow()
                else:
                    follow_with_timeout(watch, timeout, self._interrupt, self.name)
            except KeyboardInterrupt:
                self._interrupted(watch)
            finally:
                driver().loop.call_soon_threadsafe(group.forget, run)
        finally:
            self._busy.release()
        error = watch.error(lambda client: self.logs(client, 2000))
        if error is not None:
            raise error
        return CellResult(run.clients, time.monotonic() - run.started, watch.results)

    def _interrupted(self, watch: CellWatch) -> None:
        """Interrupt the clients that still run the cell, wait a while, and say what came of each."""
        running = watch.run.running
        self._interrupt(running)
        try:
            watch.follow(time.monotonic() + _INTERRUPT_GRACE)
        except KeyboardInterrupt:
            # The user will not wait: what is not over by now is told so below.
            pass
        watch.drop_pending()
        outcomes = {client: "had finished" for client in watch.run.clients if client not in running}
        for client in running:
            outcome = watch.run.outcomes.get(client)
            words = {"ok": "finished", "error": "interrupted", "aborted": "interrupted", "died": "died"}
            outcomes[client] = words[outcome.kind] if outcome else "still running; %dtensor_restart ends it"
        raise ClientsInterruptedError(self.name, outcomes) from None

    def _interrupt(self, clients: list[int]) -> None:
        driver().call(self._members().signal(clients, signal.SIGINT))

    def interrupt(self) -> None:
        """Send an interrupt to all clients."""
        self._interrupt(list(self.clients))

    def restart(
        self, *, clients: int | None = None, mesh: str | None = None, progress: Progress | None = None
    ) -> None:
        """Replace the clients; see :meth:`Cluster.restart`."""
        spec = replace(
            self.spec,
            clients=self.spec.clients if clients is None else clients,
            # With another count, yesterday's ports are not enough or too many.
            jobs=self.spec.jobs if clients is None else None,
            mesh=self.spec.mesh if mesh is None else mesh,
            background=self.spec.background or clients == 1,
        )
        if self._group is None:
            self._members()
        plan = spec.plan(self._environ)
        self._end()
        self.spec, self.plan = spec, plan
        try:
            self._start(progress)
        except BaseException:
            registry.remove(self)
            raise

    def logs(self, client: int, size: int = 4000) -> str:
        """Return the end of a client's log."""
        self.check_clients([client])
        try:
            return driver().call(self._members().log(client, size))
        except AgentError as error:
            return f"(the log cannot be read: {error})"

    def shutdown(self) -> None:
        """End the clients together; twice is no error."""
        self._end()
        registry.remove(self)

    def _end(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            driver().call(group.close())


def _report(group: ClientGroup, progress: Progress) -> None:
    try:
        progress(driver().call(group.state(sample=False), timeout=1.0))
    except (AgentError, concurrent.futures.TimeoutError):
        # The cluster is not open yet, or just closed: there is nothing to show this time.
        return
