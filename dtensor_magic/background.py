"""A cluster of background kernels, each a DTensor client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from uuid import uuid4

from . import asked
from .clients import ClientGroup
from .cluster import CellResult, Cluster, Progress, check_name_free, registry
from .describing import describe
from .errors import (
    AgentError,
    CellTimeoutError,
    ClientDiedError,
    ClientsInterruptedError,
    ClusterStateError,
    DTensorMagicError,
    NameTakenError,
    SpecError,
)
from .execution.cell import CellRun
from .execution.detective import Detective
from .execution.ladder import Ladder, interrupt_strangers
from .execution.turns import Ticket, Turns
from .execution.watch import CellWatch
from .gathering import Pulled
from .jobs import check_ports_free
from .keeping import KeepReport, Saved, restore, save
from .launchers.connection import AgentConnection, attach_to
from .launchers.local import LocalAgent, current_agent, local_agent
from .loop import driver
from .plan import ClusterPlan
from .records import find_record, no_such_cluster
from .spec import ClusterSpec
from .stacks import stack_text
from .state import ClusterState, Phase
from .values import pull, push
from .variables import VariableState

#: Seconds that a cluster lives on whose attaching failed.
DETACHED_LEASE = 600.0

#: Seconds between two looks at the clients while they come up.
_PROGRESS_INTERVAL = 0.1


class BackgroundCluster(Cluster):
    """Clients in kernels of their own, started through this machine's agent."""

    def __init__(self, name: str, spec: ClusterSpec, plan: ClusterPlan, environ: Mapping[str, str]) -> None:
        super().__init__(name, spec, plan)
        self._environ = dict(environ)
        self._group: ClientGroup | None = None
        self._turns = Turns()
        self._ended_by = ""
        self._ladder: Ladder | None = None
        self._agent: AgentConnection | None = None
        #: Variables that a restart wrote down and has not brought back yet: its start failed.
        self._saved: Saved | None = None

    @classmethod
    def launch(
        cls, spec: ClusterSpec, plan: ClusterPlan, environ: Mapping[str, str], progress: Progress | None
    ) -> BackgroundCluster:
        """Start the clients."""
        if spec.name:
            check_name_free(spec.name)
        check_ports_free(plan.jobs)
        while True:
            cluster = cls(spec.name or registry.free_name(), spec, plan, environ)
            try:
                cluster._start(progress)
            except NameTakenError:
                if spec.name:
                    raise
                # Another notebook took the name in the meantime; there are more.
                continue
            return cluster

    def _start(self, progress: Progress | None) -> None:
        agent = self._agent or local_agent()
        group = ClientGroup(
            agent,
            self.name,
            self.plan,
            {**self._environ, **self.spec.env},
            start_method=self.spec.start_method,
            isolate=self.spec.isolate,
            lease=self.spec.lease * 60,
            story={"spec": asdict(self.spec), "environ": self._environ, "setup_cells": self.setup_cells},
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
            driver().finish(group.settled())
            raise
        self._own(agent, group)

    def _own(self, agent: AgentConnection, group: ClientGroup) -> None:
        self._agent, self._group = agent, group
        agent.when_closed(self.name, self._closed_elsewhere)
        agent.when_asked(self.name, partial(asked.answer, self))
        if self.spec.lease:
            agent.leased.add(self.name)
        else:
            agent.leased.discard(self.name)

    @classmethod
    def attach(cls, name: str) -> BackgroundCluster:
        """Take up the cluster `name` that a notebook left running.

        Raises
        ------
        SpecError
            If there is none, or its notebook still runs.
        StartError
            If its clients do not answer.
        """
        running = registry.get(name)
        if isinstance(running, BackgroundCluster) and running.alive:
            return running
        record = find_record(name)
        if record is None:
            raise SpecError(no_such_cluster(name))
        own = current_agent()
        agent = own if own is not None and own.process.pid == record.agent.pid else attach_to(record.socket)
        try:
            description = driver().call(agent.request("clusters.attach", name=name, pid=os.getpid()))
        except AgentError as error:
            if agent is not own:
                agent.hang_up()
            raise SpecError(str(error)) from None
        try:
            story = description["facts"]["story"]
            spec = ClusterSpec(**story["spec"])
            cluster = cls(name, spec, spec.plan(story["environ"]), story["environ"])
            cluster.setup_cells = list(story["setup_cells"])
            group = ClientGroup(
                agent, name, cluster.plan, {**story["environ"], **spec.env}, lease=spec.lease * 60, story=story
            )
            driver().call(group.attach(description))
        except BaseException:
            # As it was before: without an owner, on its lease.
            with contextlib.suppress(AgentError):
                driver().finish(agent.request("clusters.detach", name=name, lease=DETACHED_LEASE))
            if agent is not own:
                agent.hang_up()
            raise
        cluster._own(agent, group)
        registry.add(cluster)
        return cluster

    def detach(self, lease: float) -> None:
        """Leave the clients running without a notebook, for `lease` minutes; :meth:`attach` finds them."""
        group = self._members()
        if self.spec.start_method != "fork":
            raise ClusterStateError(f"{self.name} was started by exec, and its clients end with this notebook.")
        self._check_idle()
        driver().finish(group.detach(lease * 60))
        group.agent.leased.add(self.name)
        self._group = None
        self._ended_by = "%dtensor_detach"
        registry.remove(self)
        self._leave_agent()

    def _closed_elsewhere(self, by: str) -> None:
        self._ended_by = by
        # In a thread that no cell made: it shows where the notebook is now, not where the driver was started.
        driver().in_thread(asked.tell, f"{self.name} was shut down by {by}.")
        group, self._group = self._group, None
        registry.remove(self)
        if group is not None:
            driver().submit(group.close(grace=0)).add_done_callback(lambda _: self._leave_agent())

    @property
    def alive(self) -> bool:
        """Whether the clients' agent holds the cluster."""
        return self._group is not None and self._group.agent.alive

    @property
    def busy(self) -> bool:
        """Whether a cell of this process runs, or waits for its turn."""
        return self._turns.taken

    @property
    def closed_reason(self) -> str:
        """Why collectives cannot run any more; empty while they can."""
        return self._group.closed_reason if self._group is not None else ""

    def _members(self) -> ClientGroup:
        if self._group is None:
            if self._saved is not None:
                raise ClusterStateError(
                    f"{self.name} has no clients since a restart failed; its variables are safe: "
                    "%dtensor_restart --keep all tries again."
                )
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
        ticket: Ticket | None = None,
    ) -> CellResult:
        """Run a cell on the clients; see :meth:`Cluster.run`."""
        self._members()
        self.check_cell(code, timeout, output)
        on = self.check_clients(on)
        with self._turns.turn(ticket, self._say_queued):
            return self._run_now(code, on, timeout, output, setup=setup)

    def _say_queued(self) -> None:
        sys.stderr.write(f"dtensor_magic: queued; {self.name} still runs the cell before this one.\n")
        sys.stderr.flush()

    def _run_now(
        self, code: str, on: tuple[int, ...], timeout: float | None, output: str, *, setup: bool
    ) -> CellResult:
        group = self._members()
        dead = [client for client in on if client in group.exits]
        if dead:
            text = group.exits[dead[0]]
            death = ClientDiedError(self.name, dead[0], text, where="before this cell, which was not run")
            death.hint = closed_hint(group.closed_reason)
            raise death
        run = CellRun(code, on)
        watch = CellWatch(run, self.name, output, labelled=self.plan.clients > 1)
        self._ladder = Ladder(group, run)
        follower = driver().submit(self._attend(group, run))
        open_before = not group.closed_reason
        try:
            self._follow(watch, self._ladder, timeout)
            if self._group is not group:
                by = f" by {self._ended_by}" if self._ended_by else ""
                raise ClusterStateError(f"{self.name} was shut down{by} while this cell ran.")
            group.closed_reason = group.closed_reason or run.broken_collective()
            error = watch.error(lambda client: self.logs(client, 2000))
            if error is not None:
                raise error
        except DTensorMagicError as error:
            if group.closed_reason:
                error.hint = closed_hint(group.closed_reason)
            raise
        finally:
            follower.cancel()
            self._ladder = None
            if open_before and group.closed_reason and group.agent.alive:
                # Somebody else may have ended the cluster meanwhile.
                with contextlib.suppress(AgentError):
                    driver().call(group.tell_closed())
        if setup and code not in self.setup_cells:
            self.setup_cells.append(code)
            driver().call(group.tell_story(setup_cells=self.setup_cells))
        return CellResult(run.clients, time.monotonic() - run.started, watch.results)

    def push(self, values: Mapping[str, Any], on: Iterable[int] | None = None) -> None:
        """Bind values on clients; see :meth:`Cluster.push`."""
        self._members()
        self.check_names(values)
        chosen = self.check_clients(on)
        with self._transfer() as group:
            push(group, chosen, values)

    def fetch(self, names: Sequence[str], on: Iterable[int] | None = None) -> dict[str, Pulled]:
        """Bring what names hold; see :meth:`Cluster.pull`."""
        self._members()
        wanted = self.check_names(names)
        chosen = self.check_clients(on)
        with self._transfer() as group:
            return pull(group, chosen, wanted)

    @contextlib.contextmanager
    def _transfer(self) -> Iterator[ClientGroup]:
        """Have the turn for a push or a pull."""
        with self._turns.turn(on_wait=self._say_queued):
            group = self._members()
            try:
                yield group
            except ClientDiedError as error:
                error.hint = closed_hint(group.closed_reason)
                raise

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
        watch.interrupted = True
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
        if ladder is not None:
            return driver().call(ladder.climb())
        group = self._members()
        at_work = (Phase.BUSY, Phase.WAITING)
        busy = [client.id for client in self.state(sample=False).clients if client.phase in at_work]
        # Cells that another notebook sent, before we attached.
        outcomes = driver().call(interrupt_strangers(group, busy))
        return {client: outcomes.get(client, "was idle") for client in self.clients}

    def stacks(self) -> dict[int, str]:
        """Return where each client stands, as text by client; see :meth:`Cluster.stacks`."""
        group = self._members()

        async def all_of_them() -> dict[int, str]:
            texts = await asyncio.gather(*(stack_text(group, client) for client in self.clients))
            return dict(zip(self.clients, texts, strict=True))

        return driver().call(all_of_them())

    def describe(
        self, names: Sequence[str] | None = None, *, values: bool = False
    ) -> dict[int, list[VariableState]]:
        """Tell what names hold on the clients; see :meth:`Cluster.describe`."""
        group = self._members()
        if values:
            self._check_idle()
        return driver().call(describe(group, self.clients, names, values=values))

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
        if self._saved is None:
            self._members()
        plan = self._plan_again(spec, mesh)
        self._check_idle()
        with self._turns.turn():
            if keep is None:
                self._forget_saved()
            elif self._saved is None:
                group = self._members()
                folder = group.agent.folder / f"kept-{uuid4().hex[:8]}"
                self._saved = driver().call(save(group, folder, None if list(keep) == ["all"] else keep))
            try:
                self._end()
                self.spec, self.plan = spec, plan
                self._start(progress)
            except BaseException:
                if self._saved is None:
                    registry.remove(self)
                self._ended_by = "a restart that failed"
                raise
        try:
            if replay or self._saved is not None:
                for cell in list(self.setup_cells):
                    self.run(cell, output="none")
        finally:
            # A set-up cell that fails is no reason to lose the variables.
            report = self._restore()
        return report

    def _restore(self) -> KeepReport | None:
        if self._saved is None:
            return None
        try:
            return driver().finish(restore(self._members(), self._saved))
        finally:
            self._forget_saved()

    def _check_idle(self) -> None:
        if self.busy:
            raise ClusterStateError(f"{self.name} is busy with a cell; interrupt it first.")

    def _plan_again(self, spec: ClusterSpec, mesh: str | None) -> ClusterPlan:
        try:
            return spec.plan(self._environ)
        except SpecError as error:
            if spec.mesh and mesh is None:
                raise SpecError(f"{error} The mesh is the one from before; give --mesh for another.") from None
            raise

    def _forget_saved(self) -> None:
        if self._saved is not None:
            self._saved.clear()
            self._saved = None

    def logs(self, client: int, size: int = 4000) -> str:
        """Return the end of a client's log."""
        self.check_clients([client])
        try:
            return driver().call(self._members().log(client, size))
        except (AgentError, ClusterStateError) as error:
            return f"(the log cannot be read: {error})"

    def shutdown(self) -> None:
        """End the clients together; twice is no error."""
        self._end()
        self._forget_saved()
        self._leave_agent()
        registry.remove(self)

    def _leave_agent(self) -> None:
        """Hang up on the agent of another notebook that we attached to: with neither owner nor cluster it ends."""
        if self._agent is not None and not isinstance(self._agent, LocalAgent):
            self._agent.hang_up()
        self._agent = None

    def _end(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.agent.leased.discard(self.name)
            group.agent.forget(self.name)
            driver().finish(group.close())


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
