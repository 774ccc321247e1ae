"""This node's part of a job: which processes it runs, and what each of them is told."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .. import cgroup
from ..agent.environment import client_environment
from ..devices import known_device_type, usable_cpus
from ..errors import SpecError
from ..jobs import check_port, split_address
from ..plan import ClientOptions, ClientSpec
from ..platforms import detect, dtensor, modelarts
from ..platforms.description import JobDescription
from ..platforms.variables import PORT_VARIABLE
from ..resources import Node, ResourcePlan, Share, checked_counts, divide, this_node
from .options import LaunchOptions, Strategy
from .ports import free_ports

#: What the parts of a job meet on, counted from the first client's port.
CONTROL_OFFSET = 10_000

#: What the container says beside what ModelArts' options say.
_BESIDE_OPTIONS = ("MA_CURRENT_IP", "MA_NUM_GPUS", PORT_VARIABLE)

#: The word by which a script says that it uses parameter servers.
_STRATEGY = "ParameterServerStrategy"


@dataclass(frozen=True)
class Task:
    """A process to run.

    Attributes
    ----------
    label : str
        What its output is marked with.
    kind : str
        ``script``: the user's, whose end is the job's. ``server``: a TensorFlow server, which the job ends.
    env : dict of str to str
        Its whole environment.
    share : Share or None
        What it gets of the node; None for a coordinator, which takes what is left.
    """

    label: str
    kind: Literal["script", "server"]
    env: dict[str, str]
    share: Share | None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"client {self.label}" if self.label.isdigit() else self.label


@dataclass(frozen=True)
class Part:
    """What this launcher runs of a job.

    Attributes
    ----------
    name : str
        ``worker 1``, ``ps 0``, ``chief 0``.
    names : tuple of str
        The parts of the whole job, the leader first.
    tasks : tuple of Task
        Empty for a parameter server that only waits.
    resources : ResourcePlan
        The processes of this host, other parts' among them where they share it.
    strategy : str
    description : JobDescription or None
        What the platform said; None for a job of this node alone.
    leader : (str, int) or None
        Where the parts meet.
    """

    name: str
    names: tuple[str, ...]
    tasks: tuple[Task, ...]
    resources: ResourcePlan
    strategy: Strategy
    description: JobDescription | None = None
    leader: tuple[str, int] | None = None

    @property
    def works(self) -> bool:
        """Whether the end of this part's processes is the job's; servers end with the others."""
        return any(task.kind == "script" for task in self.tasks)


def describe(options: LaunchOptions, environ: Mapping[str, str]) -> JobDescription | None:
    """Return what is said about the job, by ModelArts' options or by the platform.

    Raises
    ------
    SpecError
        For descriptions that are wrong or disagree.
    """
    if options.task is not None:
        more = {name: environ[name] for name in _BESIDE_OPTIONS if name in environ}
        return modelarts.read({**more, **options.task})
    if options.platform is not None:
        return detect.read(options.platform, environ)
    return detect.detect(environ)


def make_part(options: LaunchOptions, environ: Mapping[str, str] = os.environ) -> Part:
    """Settle everything that can be known before a process starts.

    Raises
    ------
    SpecError
        One line: what was wrong, and what is right.
    """
    checked_counts(options.clients, options.ps)
    node = this_node(known_device_type(options.device_type, environ), environ)
    described = describe(options, environ)
    if described is None or (described.alone and not described.ps) or described.role == "evaluator":
        return _Builder(options, environ, node, None).on_this_node(described)
    if options.ps:
        raise SpecError(f"ps: {described} says which parameter servers the job has; leave --ps out.")
    return _Builder(options, environ, node, described).of_job(described)


def find_strategy(options: LaunchOptions, *, servers: bool) -> Strategy:
    """Return what the job uses: what was said, else by the script's words; without servers it is DTensor."""
    if options.strategy is not None:
        if options.strategy == "parameter-server" and not servers:
            raise SpecError("strategy: parameter-server needs parameter servers; give --ps 1 or more.")
        return options.strategy
    text = options.script.read_text("utf-8", "replace")
    return "parameter-server" if servers and _STRATEGY in text else "dtensor"


class _Builder:
    """Makes a part's tasks."""

    def __init__(
        self, options: LaunchOptions, environ: Mapping[str, str], node: Node, described: JobDescription | None
    ) -> None:
        self.options = options
        self.environ = environ
        self.node = node
        self.strategy = find_strategy(options, servers=bool(options.ps or (described and described.ps)))

    def on_this_node(self, described: JobDescription | None) -> Part:
        """Return a job of this node alone."""
        count, servers = self.options.clients, self.options.ps
        resources = divide(self.node, count, servers)
        if self.strategy == "dtensor":
            jobs = tuple(f"localhost:{port}" for port in free_ports(count)) if count > 1 else ()
            tasks = [self._client(number, jobs, resources.clients[number]) for number in range(count)]
        else:
            ports = [f"localhost:{port}" for port in free_ports(count + servers + 1)]
            cluster = {"worker": ports[:count], "ps": ports[count:-1]}
            tasks = [self._server("ps", number, cluster, resources.ps[number]) for number in range(servers)]
            tasks += [self._server("worker", number, cluster, resources.clients[number]) for number in range(count)]
            tasks.append(self._coordinator({**cluster, "chief": ports[-1:]}))
        name = f"{described.role} {described.index}" if described is not None else "worker 0"
        return Part(name, (name,), tuple(tasks), resources, self.strategy, described)

    def of_job(self, described: JobDescription) -> Part:
        """Return this node's part of the job that is described."""
        _check_known(described)
        clients = _spread(described.clients, self.options.clients)
        for address in set(clients) & set(described.ps):
            raise SpecError(f"clients: {address} would be a client's, but it is a parameter server's; give fewer.")
        names = [
            f"{role} {number}"
            for role in ("chief", "worker", "ps")
            for number in range(len(described.tasks.get(role, ())))
        ]
        resources, own = self._own_shares(described)
        part = Part(
            f"{described.role} {described.index}",
            tuple(names),
            (),
            resources,
            self.strategy,
            described,
            self._leader(clients[0]),
        )
        if self.strategy == "dtensor":
            if described.role == "ps":
                return part
            first = (len(described.chief) if described.role == "worker" else 0) + described.index
            first *= self.options.clients
            jobs = () if described.alone and len(clients) == 1 else clients
            return replace(part, tasks=tuple(self._client(first + i, jobs, share) for i, share in enumerate(own)))
        return replace(part, tasks=tuple(self._parameter_server_tasks(described, clients, own)))

    def _parameter_server_tasks(
        self, described: JobDescription, clients: tuple[str, ...], own: Sequence[Share]
    ) -> list[Task]:
        chief = [*clients[: len(described.chief)]]
        if described.chief and self.options.clients > 1:
            raise SpecError("clients: a job with a chief and parameter servers takes one process per task (-n 1).")
        cluster = {"worker": list(clients[len(chief) :]), "ps": list(described.ps)}
        if described.role == "chief":
            return [self._coordinator({**cluster, "chief": chief})]
        first = described.index * self.options.clients if described.role == "worker" else described.index
        servers = {**cluster, "chief": chief} if chief else cluster
        tasks = [self._server(described.role, first + i, servers, share) for i, share in enumerate(own)]
        if described.role == "worker" and described.index == 0 and not chief:
            # Nobody coordinates yet: the script does, beside the first worker.
            host = clients[0].rpartition(":")[0]
            tasks.append(self._coordinator({**cluster, "chief": [f"{host}:{free_ports(1)[0]}"]}))
        return tasks

    def _own_shares(self, described: JobDescription) -> tuple[ResourcePlan, Sequence[Share]]:
        """Return this host's division and this part's shares of it.

        Parts that are on one host share it, unless the platform gave each of them its own cores or accelerators.
        """
        count = self.options.clients
        if self._confined():
            plan = divide(self.node, 0 if described.role == "ps" else count, int(described.role == "ps"))
            return plan, plan.shares
        own = described.ps[described.index] if described.role == "ps" else described.clients[described.client_id]
        clients = [place for place in described.clients if _host(place) == _host(own)]
        servers = [place for place in described.ps if _host(place) == _host(own)]
        plan = divide(self.node, len(clients) * count, len(servers))
        if described.role == "ps":
            return plan, plan.ps[servers.index(own) :][:1]
        return plan, plan.clients[clients.index(own) * count :][:count]

    def _confined(self) -> bool:
        return (
            len(usable_cpus()) < (os.cpu_count() or 1)
            or cgroup.cpu_quota() is not None
            or "CUDA_VISIBLE_DEVICES" in self.environ
        )

    def _leader(self, first: str) -> tuple[str, int]:
        place = split_address(first)
        assert place is not None
        port = place[1] + CONTROL_OFFSET
        return place[0], self.options.control_port or (port if port <= 65535 else place[1] - CONTROL_OFFSET)

    def _client(self, number: int, jobs: tuple[str, ...], share: Share) -> Task:
        spec = ClientSpec(
            client_id=number,
            num_clients=max(1, len(jobs)),
            device_type=self.node.device_type,
            jobs=jobs,
            options=ClientOptions(
                job_name=dtensor.job_name(self.environ), parallel_executor=dtensor.parallel_executor(self.environ)
            ),
        )
        env = self._environment(share)
        for name, value in spec.variables().items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        # What the platform says is about this part as a whole, and not about its clients.
        env[detect.VARIABLE] = dtensor.NAME
        return Task(str(number), "script", env, share)

    def _server(self, role: str, number: int, cluster: Mapping[str, list[str]], share: Share) -> Task:
        env = self._environment(share)
        env["TF_CONFIG"] = _tf_config(cluster, role, number)
        return Task(f"{role} {number}", "server", env, share)

    def _coordinator(self, cluster: Mapping[str, list[str]]) -> Task:
        env = self._environment(None)
        env["TF_CONFIG"] = _tf_config(cluster, "chief", 0)
        return Task("chief", "script", env, None)

    def _environment(self, share: Share | None) -> dict[str, str]:
        """Return a process's environment: threads and accelerators as the plan has them, output as it comes."""
        env = {"PYTHONUNBUFFERED": "1", **client_environment(self.environ)}
        if share is not None:
            env.update(share.thread_variables(self.environ))
        if self.node.device_type == "GPU":
            # A parameter server and a coordinator compute on CPUs alone.
            mine = share.accelerators if share is not None else ()
            env["CUDA_VISIBLE_DEVICES"] = ",".join(mine) or "-1"
        return env


def _check_known(described: JobDescription) -> None:
    """Refuse a job whose parts could not meet."""
    if described.sparse or not described.clients:
        raise SpecError(
            f"launch: {described.platform} does not name all tasks of the job, so that its parts cannot meet. "
            "On Kubeflow, set enableDynamicWorker to false."
        )
    for address in described.clients:
        if split_address(address) is None:
            raise SpecError(f"launch: the parts of the job cannot meet at {address}, which is no host:port.")
    if not 0 <= described.client_id < len(described.clients):
        last = len(described.clients) - 1
        raise SpecError(f"client id {described.client_id} is out of range: it is 0 to {last}.")


def _tf_config(cluster: Mapping[str, list[str]], role: str, number: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": number}})


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _spread(addresses: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Give each task `count` addresses: its own port, and more above all that its host has in the list."""
    if count == 1:
        return addresses
    ports: dict[str, list[int]] = {}
    for address in addresses:
        ports.setdefault(_host(address), []).append(int(address.rpartition(":")[2]))
    spread: list[str] = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        span = max(ports[host]) - min(ports[host]) + 1
        for number in range(count):
            own = check_port(str(int(port) + number * span), where=f"client {len(spread)} on {host}")
            spread.append(f"{host}:{own}")
    return tuple(spread)
