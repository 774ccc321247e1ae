"""The clients of one cluster: their processes and kernel connections, on the driver's loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .agent.environment import client_environment
from .client.context import VARIABLE, ClientContext
from .errors import AgentError, NameTakenError, StartError
from .execution.cell import CellRun
from .execution.channel import ClientChannel
from .execution.fold import Piece
from .execution.present import Presenter
from .jobs import split_address
from .launchers.connection import AgentConnection
from .launchers.local import python_path
from .managers import ClientManager
from .plan import ClusterPlan
from .records import name_taken
from .start_errors import find_culprit, late_clients, late_error, no_answer, start_error
from .state import ClusterState, describe_exit

#: Seconds that clients get to leave by themselves at a shutdown.
LEAVE_GRACE = 2.0

#: Seconds for all clients to answer a notebook that attaches.
ATTACH_TIMEOUT = 10.0

#: Seconds for an answer of a client's control thread, which needs the interpreter's lock now and then.
REPORT_TIMEOUT = 1.5

#: Seconds for a client to read the values of tensors.
VALUES_TIMEOUT = 60.0
#: Seconds between two looks at whether a client that was asked something has ended.
_LOOK = 0.2

#: How TensorFlow says that a port was taken between its reservation's end and its use.
_BIND_FAILURE = "Could not start gRPC server"

#: How often the mesh is started over on such a failure.
_BIND_TRIES = 3


class ClientGroup:
    """All clients of a cluster.

    Every coroutine and method here runs on the driver's loop.

    Parameters
    ----------
    agent : AgentConnection
    name : str
        The cluster's name.
    plan : ClusterPlan
    environ : mapping of str to str
        The clients' environment.
    start_method : str
        ``fork`` or ``exec``.
    isolate : bool
        Own network namespace.
    lease : float
        Seconds that the clients live on without us.
    story : mapping
        What a notebook that attaches later needs to know; the agent keeps it in memory.
    """

    def __init__(
        self,
        agent: AgentConnection,
        name: str,
        plan: ClusterPlan,
        environ: Mapping[str, str],
        *,
        start_method: str = "fork",
        isolate: bool = False,
        lease: float = 0.0,
        story: Mapping[str, Any] | None = None,
    ) -> None:
        self.agent = agent
        self.name = name
        self.plan = plan
        self.exits: dict[int, str] = {}
        self._environ = client_environment(environ)
        self._start_method = start_method
        self._isolate = isolate
        self._lease = lease
        self._story = dict(story or {})
        self._managers: dict[int, ClientManager] = {}
        self._channels: dict[int, ClientChannel] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._runs: dict[str, tuple[CellRun, int]] = {}
        #: Clients that the interrupt ladder killed.
        self._killed: set[int] = set()
        self._died = asyncio.Event()
        self._folder = Path()
        self._ports: list[int] = []
        self._opened = False
        self._starting: asyncio.Task[None] | None = None
        #: Why collectives cannot run any more; empty while they can.
        self.closed_reason = ""

    # --- start

    async def start(self) -> None:
        """Start all clients; return when all are ready.

        Raises
        ------
        StartError
            With the first failing client's own error, or naming those that were not ready in time.
        """
        self._starting = asyncio.current_task()
        for attempt in range(1, _BIND_TRIES + 1):
            try:
                await asyncio.wait_for(self._start_once(), self.plan.options.timeout)
            except StartError as error:
                await self.close(grace=0)
                if self.plan.jobs or _BIND_FAILURE not in error.detail or attempt == _BIND_TRIES:
                    raise
            except asyncio.TimeoutError:
                late = await self._late_error()
                await self.close(grace=0)
                raise late from None
            except BaseException:
                await self.close(grace=0)
                raise
            else:
                return

    async def attach(self, description: Mapping[str, Any]) -> None:
        """Take up clients that another process started, as the agent describes them.

        Raises
        ------
        StartError
            If one does not answer.
        """
        self._folder = Path(description["folder"])
        self._opened = True
        self.closed_reason = description["facts"].get("closed_reason", "")
        for number, process in description["clients"].items():
            client = int(number)
            if process["exit"] is not None:
                self.exits[client] = process["exit"]
                self.closed_reason = self.closed_reason or f"client {client} {process['exit']}"
                continue
            manager = ClientManager(self._folder, self.name, client, "fork", self.agent)
            await manager.take_up(process["key"], process["pid"])
            self._managers[client] = manager
            self._connect(client, manager)
        try:
            # A client whose cell still runs answers on its control channel only.
            await asyncio.wait_for(
                asyncio.gather(*(channel.alive() for channel in self._channels.values())), ATTACH_TIMEOUT
            )
        except asyncio.TimeoutError:
            self._let_go()
            raise StartError(
                f"the clients of {self.name} do not answer; dtensor-magic stop {self.name} ends them."
            ) from None

    async def detach(self, lease: float) -> None:
        """Leave the clients running, for `lease` seconds."""
        await self.agent.request("clusters.detach", name=self.name, lease=lease)
        self.agent.forget(self.name)
        self._let_go()

    def _let_go(self) -> None:
        for watch in self._watches.values():
            watch.cancel()
        for channel in self._channels.values():
            channel.close()
        for manager in self._managers.values():
            # All but the files: they are the clients' still.
            manager.context.destroy(linger=0)
        self._watches.clear()
        self._channels.clear()
        self._managers.clear()
        self._opened = False

    async def tell_story(self, **story: Any) -> None:
        """Have the agent keep more of what a later notebook needs."""
        self._story.update(story)
        await self.agent.request("clusters.update", name=self.name, facts={"story": self._story})

    async def tell_closed(self) -> None:
        """Have every view say that collectives cannot run any more."""
        facts = {
            "closed_reason": self.closed_reason,
            "last_error": f"✗ collectives are closed ({self.closed_reason}): restart, keeping the variables.",
        }
        await self.agent.request("clusters.update", name=self.name, facts=facts)

    async def settled(self) -> None:
        """Return when a start that was cancelled has cleared up after itself."""
        if self._starting is not None:
            await asyncio.wait([self._starting])

    async def _start_once(self) -> None:
        self._died = asyncio.Event()
        self.exits.clear()
        self._killed.clear()
        self.closed_reason = ""
        plan = self.plan
        mesh = plan.mesh
        facts = {
            "mode": "multi-client" if plan.multi_client else "local",
            "device_type": plan.device_type,
            "story": self._story,
            "meshes": [{"name": "mesh", "dims": dict(mesh.dims), "device_type": plan.device_type}] if mesh else [],
        }
        self._opened = True
        try:
            folder = await self._open(facts)
        except NameTakenError:
            # The cluster of that name is another one: not ours to close.
            self._opened = False
            raise
        self._folder = Path(folder)
        ports = self._ports = await self._reserve_ports()
        jobs = plan.jobs or tuple(f"localhost:{port}" for port in ports)
        await self.agent.request("clusters.update", name=self.name, facts={"jobs": jobs})
        await asyncio.gather(*(self._launch(client, jobs, ports) for client in range(plan.clients)))
        ready = asyncio.ensure_future(self._all_ready())
        died = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({ready, died}, return_when=asyncio.FIRST_COMPLETED)
            if self.exits:
                raise await self._start_error()
        finally:
            ready.cancel()
            died.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ready

    async def _open(self, facts: Mapping[str, Any]) -> str:
        """Have the agent make room for the cluster; return its folder.

        Raises
        ------
        NameTakenError
            If another cluster has the name.
        """
        try:
            folder: str = await self.agent.request(
                "clusters.open",
                name=self.name,
                facts=facts,
                lease=self._lease,
                isolate=self._isolate,
                env=self._environ,
                path=python_path(),
            )
        except AgentError as error:
            if str(error) == name_taken(self.name):
                raise NameTakenError(str(error)) from None
            raise
        return folder

    async def _all_ready(self) -> None:
        await asyncio.gather(*(channel.ready() for channel in self._channels.values()))

    async def _reserve_ports(self) -> list[int]:
        if not self.plan.multi_client:
            return []
        if self.plan.jobs:
            places = [split_address(job) for job in self.plan.jobs]
            given = [place[1] for place in places if place is not None]
            return list(await self.agent.request("ports.reserve", ports=given))
        return list(await self.agent.request("ports.reserve", count=self.plan.clients))

    async def _launch(self, client: int, jobs: tuple[str, ...], ports: list[int]) -> None:
        spec = self.plan.client(client, jobs)
        orders = ClientContext(
            cluster=self.name,
            spec=spec,
            status=str(self._folder / f"c{client}.status"),
            agent=f"{self.agent.folder}/agent.sock",
            ports=(ports[client],) if ports else (),
        )
        env = {**self._environ, VARIABLE: orders.to_text()}
        if spec.accelerators and spec.device_type == "GPU":
            env["CUDA_VISIBLE_DEVICES"] = ",".join(spec.accelerators)
        manager = ClientManager(self._folder, self.name, client, self._start_method, self.agent)
        self._managers[client] = manager
        with self._own_output(client) as streams:
            await manager.start_kernel(env=env, **streams)
        if self._start_method == "exec":
            await self.agent.request(
                "kernels.adopt",
                key=manager.kernel_id,
                pid=manager.pid,
                cluster=self.name,
                client=client,
            )
        self._connect(client, manager)

    def _connect(self, client: int, manager: ClientManager) -> None:
        """Watch over a client's process, and open its kernel's channels."""
        self._watches[client] = asyncio.ensure_future(self._watch(client, manager))

        def receive(channel: str, message: Mapping[str, Any]) -> None:
            self._receive(client, channel, message)

        self._channels[client] = ClientChannel(manager.get_connection_info(), receive)

    @contextlib.contextmanager
    def _own_output(self, client: int) -> Iterator[dict[str, IO[bytes]]]:
        """Give an exec'd client its log; a forked one opens it itself."""
        if self._start_method == "fork":
            yield {}
            return
        log = self._folder / f"c{client}.log"
        log.touch(mode=0o600)
        with log.open("ab") as output:
            streams: dict[str, IO[bytes]] = {"stdout": output, "stderr": output}
            yield streams

    async def _watch(self, client: int, manager: ClientManager) -> None:
        """Wait for the client's process to end, and tell everyone."""
        code = await manager.process.wait()
        if self._start_method == "exec" and self.agent.alive:
            await self.agent.request("kernels.report", key=manager.kernel_id, code=code)
        self.exits[client] = await self._describe(client, code)
        self.closed_reason = self.closed_reason or f"client {client} {self.exits[client]}"
        self._died.set()
        for run, member in list(self._runs.values()):
            if member == client:
                run.died(client, self.exits[client])

    async def _describe(self, client: int, code: int | None) -> str:
        """Say how a client ended: the culprit, not the messenger."""
        if client in self._killed:
            return "did not stop and had to be killed"
        try:
            # Its status page says whether it meant to: its last reply may have been lost with it.
            found = next((one.exit for one in (await self.state(sample=False)).clients if one.id == client), None)
        except AgentError:
            found = None
        if not self.agent.alive:
            return "ended with its host agent, which died"
        return found or describe_exit(code)

    async def _start_error(self) -> StartError:
        state = await self.state(sample=False)
        culprit = find_culprit(state, self.exits)
        return start_error(self.name, culprit, self.exits[culprit.id], await self.log(culprit.id, 4000))

    async def _late_error(self) -> StartError:
        if not self._opened:
            return no_answer(self.plan)
        state = await self.state(sample=False)
        late = late_clients(state)
        return late_error(self.plan, state, await self.log(late[0].id, 4000) if late else "")

    # --- life

    async def state(self, *, sample: bool) -> ClusterState:
        """Return the agent's view of the cluster."""
        return ClusterState.from_json(await self.agent.request("clusters.state", name=self.name, sample=sample))

    async def log(self, client: int, size: int) -> str:
        """Return the last `size` bytes of a client's log (all for a size below 0)."""
        text: str = await self.agent.request("clients.log", name=self.name, client=client, size=size)
        return text

    def send(self, run: CellRun) -> None:
        """Send a cell to its clients."""
        for client in run.clients:
            if client in self.exits:
                run.died(client, self.exits[client])
                continue
            content = {
                "code": run.code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": False,
                # Cells are sent one by one, so there is no queue that an error should clear.
                "stop_on_error": False,
            }
            identity = self._channels[client].send("shell", "execute_request", content, {"dtensor_run": run.id})
            self._runs[identity] = (run, client)

    def forget(self, run: CellRun) -> None:
        """Take in no more of a cell that is over."""
        self._runs = {identity: entry for identity, entry in self._runs.items() if entry[0] is not run}

    def _receive(self, client: int, channel: str, message: Mapping[str, Any]) -> None:
        entry = self._runs.get(message["parent_header"].get("msg_id", ""))
        if entry is not None and _asks_exit(message):
            # What came of the cell is that its client ended, not this reply.
            self._channels[client].send("control", "shutdown_request", {"restart": False})
        elif entry is not None:
            entry[0].take(client, channel, message)
        elif channel == "iopub" and message["header"]["msg_type"] == "stream":
            # A thread that a cell left behind: it shows where this process's own late output does.
            content = message["content"]
            presenter = Presenter(self.name, (client,), labelled=self.plan.clients > 1)
            presenter.show([Piece((client,), content["name"], content["text"])])
            presenter.finish()

    async def signal(self, clients: Iterable[int], signum: int) -> None:
        """Send a signal to clients."""
        for client in clients:
            if client not in self.exits:
                await self._managers[client].signal_kernel(signum)

    async def kill(self, clients: Iterable[int]) -> None:
        """Kill clients that react to nothing else."""
        self._killed.update(clients)
        await self.signal(clients, signal.SIGKILL)

    async def ask(
        self, client: int, kind: str, content: Mapping[str, Any], timeout: float, *, channel: str = "control"
    ) -> Mapping[str, Any] | None:
        """Ask a client something; None if it does not answer in time, or is gone.

        The control channel is answered while a cell runs, the shell channel after it.
        """
        if client in self.exits or client not in self._channels:
            return None
        try:
            return await asyncio.wait_for(self._channels[client].ask(channel, kind, content), timeout)
        except asyncio.TimeoutError:
            return None

    async def ask_living(
        self, client: int, kind: str, content: Mapping[str, Any], timeout: float = float("inf")
    ) -> Mapping[str, Any] | None:
        """Ask a client on its shell channel; None in time, or as soon as its process or the cluster has ended."""
        asking = asyncio.ensure_future(self.ask(client, kind, content, timeout, channel="shell"))
        try:
            while not asking.done():
                await asyncio.wait([asking], timeout=_LOOK)
                if client in self.exits or client not in self._channels:
                    return None
            return asking.result()
        finally:
            asking.cancel()

    def tell(self, client: int, kind: str, content: Mapping[str, Any]) -> None:
        """Send a client a request on its shell channel whose answer nobody waits for."""
        if client not in self.exits and client in self._channels:
            self._channels[client].send("shell", kind, content)

    async def report(self, client: int) -> Mapping[str, Any] | None:
        """Ask where the client's main thread stands; None where it does not answer."""
        return await self.ask(client, "dtensor_report_request", {}, REPORT_TIMEOUT)

    async def abort(self, client: int, reason: str) -> bool:
        """Abort the client's collectives, which closes the mesh for good."""
        self.closed_reason = self.closed_reason or reason
        answer = await self.ask(client, "dtensor_abort_request", {"reason": reason}, REPORT_TIMEOUT)
        return answer is not None and bool(answer["aborted"])

    async def describe(self, client: int, names: Sequence[str] | None, *, values: bool) -> Mapping[str, Any] | None:
        """Ask a client what its names hold; None where it does not answer."""
        # Values are read by the main thread, when its cell is over; the rest is told meanwhile too.
        channel, timeout = ("shell", VALUES_TIMEOUT) if values else ("control", REPORT_TIMEOUT)
        asked = {"names": names, "values": values}
        return await self.ask(client, "dtensor_describe_request", asked, timeout, channel=channel)

    async def native_stacks(self, client: int) -> str:
        """Have the client's process write all its threads' stacks by a signal, which needs no Python."""
        text: str = await self.agent.request("clients.stacks", name=self.name, client=client)
        return text

    # --- end

    async def close(self, grace: float = LEAVE_GRACE) -> None:
        """End all clients together, and everything that belongs to the cluster.

        Parameters
        ----------
        grace : float
            Seconds for clients to leave by themselves, running what they registered with `atexit`.
        """
        for watch in self._watches.values():
            watch.cancel()
        for run, client in list(self._runs.values()):
            # Whoever waits for this cell must not wait for clients that nobody watches any more.
            run.died(client, "was ended with its cluster")
        leaving = [client for client in self._channels if client not in self.exits]
        if grace and leaving and self.agent.alive:
            await self._ask_to_leave(leaving, grace)
        for channel in self._channels.values():
            channel.close()
        if self._opened and self.agent.alive:
            # Someone else may have ended it at the same time; what we want then already holds.
            with contextlib.suppress(AgentError):
                await self.agent.request("ports.release", ports=self._ports)
                await self.agent.request("clusters.close", name=self.name, grace=0.0)
        for manager in self._managers.values():
            if self._start_method == "exec" and manager.has_kernel:
                await manager.process.kill()
                await manager.process.wait()
            await manager.cleanup_resources()
        self._managers.clear()
        self._channels.clear()
        self._watches.clear()
        self._opened = False

    async def _ask_to_leave(self, clients: list[int], grace: float) -> None:
        for client in clients:
            self._channels[client].send("control", "shutdown_request", {"restart": False})
        waits = [asyncio.ensure_future(self._managers[client].process.wait()) for client in clients]
        await asyncio.wait(waits, timeout=grace)
        for wait in waits:
            wait.cancel()


def _asks_exit(message: Mapping[str, Any]) -> bool:
    """Whether a cell's reply says that it called ``exit()``, which ends the kernel unless it is told to stay."""
    payloads = message["content"].get("payload", ())
    return any(payload.get("source") == "ask_exit" and not payload.get("keepkernel") for payload in payloads)
