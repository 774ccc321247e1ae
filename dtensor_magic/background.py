"""A cluster of background kernels, each a DTensor client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from .clients import ClientGroup
from .cluster import CellResult, Cluster, Progress, check_name_free, registry
from .errors import AgentError, CellTimeoutError, ClientsInterruptedError, ClusterStateError
from .execution.cell import CellRun
from .execution.detective import Detective
from .execution.ladder import Ladder
from .execution.watch import CellWatch
from .jobs import check_ports_free
from .keeping import KeepReport, restore, save
from .launchers.local import local_agent
from .loop import driver
from .plan import ClusterPlan
from .records import free_name
from .spec import ClusterSpec
from .stacks import stack_text
from .state import ClusterState

#: Seconds between two looks at the clients while they come up.
_PROGRESS_INTERVAL = 0.1


class BackgroundCluster(Cluster):
    """Clients in kernels of their own, started through this machine's agent."""

    def __init__(self, name: str, spec: ClusterSpec, plan: ClusterPlan, environ: Mapping[str, str]) -> None:
        super().__init__(name, spec, plan)
        self._environ = dict(environ)
        self._group: ClientGroup | None = None
        self._busy = threading.Lock()
        self._ended_by = ""
        self._ladder: Ladder | None = None

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

    @property
    def closed_reason(self) -> str:
        """Why collectives cannot run any more; empty while they can."""
        return self._group.closed_reason if self._group is not None else ""

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
        setup: bool = False,
    ) -> CellResult:
        """Run a cell on the clients; see :meth:`Cluster.run`."""
        group = self._members()
        self.check_cell(code, timeout, output)
        run = CellRun(code, self.check_clients(on))
        if not self._busy.acquire(blocking=False):
            raise ClusterStateError(f"{self.name} is busy with another cell; wait for it, or interrupt it.")
        try:
            watch = CellWatch(run, self.name, output, labelled=self.plan.clients > 1)
            self._ladder = Ladder(group, run)
            follower = driver().submit(self._attend(group, run))
            try:
                self._follow(watch, self._ladder, timeout)
            finally:
                follower.cancel()
                self._ladder = None
        finally:
            self._busy.release()
        error = watch.error(lambda client: self.logs(client, 2000))
        if error is not None:
            if group.closed_reason:
                error.hint = closed_hint(group.closed_reason)
            raise error
        if setup and code not in self.setup_cells:
            self.setup_cells.append(code)
        return CellResult(run.clients, time.monotonic() - run.started, watch.results)

    async def _attend(self, group: ClientGroup, run: CellRun) -> None:
        """Send the cell, and watch over it while it runs."""
        group.send(run)
        try:
            await Detective(group, run, self.clients, self.fail_grace).watch()
        finally:
            group.forget(run)

    def _follow(self, watch: CellWatch, ladder: Ladder, timeout: float | None) -> None:
        deadline = None if timeout is None else watch.run.started + timeout
        try:
            if watch.follow(deadline):
                return
        except KeyboardInterrupt:
            raise ClientsInterruptedError(self.name, self._climb(watch, ladder)) from None
        late = watch.run.running
        self._climb(watch, ladder)
        raise CellTimeoutError(self.name, late, timeout or 0.0)

    def _climb(self, watch: CellWatch, ladder: Ladder) -> dict[int, str]:
        """Climb the interrupt ladder, showing what clients still say; return what came of each."""
        climbing = driver().submit(ladder.climb())
        while True:
            try:
                while not (watch.run.over or climbing.done()):
                    watch.follow(time.monotonic() + 0.1)
                outcomes = climbing.result()
                break
            except KeyboardInterrupt:
                # The user will not wait: straight to the last step.
                driver().loop.call_soon_threadsafe(ladder.hurry)
        watch.drop_pending()
        return outcomes

    def interrupt(self) -> dict[int, str]:
        """Interrupt the cell that runs; return what came of each client, in words."""
        ladder = self._ladder
        if ladder is None:
            return dict.fromkeys(self.clients, "was idle")
        return driver().call(ladder.climb())

    def stacks(self) -> dict[int, str]:
        """Return where each client stands, as text by client; see :meth:`Cluster.stacks`."""
        group = self._members()

        async def all_of_them() -> dict[int, str]:
            texts = await asyncio.gather(*(stack_text(group, client) for client in self.clients))
            return dict(zip(self.clients, texts, strict=True))

        return driver().call(all_of_them())

    def restart(
        self,
        *,
        clients: int | None = None,
        mesh: str | None = None,
        keep: Sequence[str] | None = None,
        replay: bool = False,
        progress: Progress | None = None,
    ) -> KeepReport | None:
        """Replace the clients; see :meth:`Cluster.restart`."""
        spec = replace(
            self.spec,
            clients=self.spec.clients if clients is None else clients,
            # With another count, yesterday's ports are not enough or too many.
            jobs=self.spec.jobs if clients is None else None,
            mesh=self.spec.mesh if mesh is None else mesh,
            background=self.spec.background or clients == 1,
        )
        group = self._members()
        plan = spec.plan(self._environ)
        if not self._busy.acquire(blocking=False):
            raise ClusterStateError(f"{self.name} is busy with a cell; interrupt it first.")
        try:
            saved = None
            if keep is not None:
                folder = group.agent.folder / f"kept-{uuid4().hex[:8]}"
                saved = driver().call(save(group, folder, None if list(keep) == ["all"] else keep))
            self._end()
            self.spec, self.plan = spec, plan
            try:
                self._start(progress)
            except BaseException:
                registry.remove(self)
                raise
        finally:
            self._busy.release()
        try:
            if replay or saved is not None:
                for cell in self.setup_cells:
                    self.run(cell, output="none")
            return driver().call(restore(self._members(), saved)) if saved is not None else None
        finally:
            if saved is not None:
                saved.clear()

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


def closed_hint(reason: str) -> str:
    """Say what to do when collectives are closed."""
    return (
        f"The mesh's collectives are closed ({reason}); %dtensor_restart --keep all brings up new clients "
        "with these variables."
    )


def _report(group: ClientGroup, progress: Progress) -> None:
    try:
        progress(driver().call(group.state(sample=False), timeout=1.0))
    except (AgentError, concurrent.futures.TimeoutError):
        # The cluster is not open yet, or just closed: there is nothing to show this time.
        return
