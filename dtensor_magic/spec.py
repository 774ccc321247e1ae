"""What a user asks for: :class:`ClusterSpec` and its checks.

The checks come before any process starts, and each failure is one line that says what is right.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from . import devices
from .errors import SpecError
from .jobs import is_local_host, parse_jobs, split_address
from .meshes import MeshSpec
from .plan import ClientOptions, ClusterPlan, Mode
from .platforms import detect, dtensor
from .platforms.description import JobDescription
from .records import NAME
from .resources import ResourcePlan, checked_counts, divide, this_node

_JOB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_LOGICAL_CPUS = 1024


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster as asked for.

    Attributes
    ----------
    device_type : str or None
        CPU, GPU or TPU, in any case; None for the preferred one.
    clients : int or None
        Client count; None where the user gave none.
    background : bool
        One background client instead of the notebook kernel.
    here : bool
        The notebook kernel is itself a client.
    logical_cpus : int or None
        ``num_logical_cpu_devices`` per client.
    megcore, reset_context, coordination_service : bool
        The call's ``experimental_enable_megcore``, ``experimental_reset_context`` and
        ``enable_coordination_service``.
    jobs : str or None
        ``DTENSOR_JOBS``, where given explicitly or by the environment.
    client_id : int or None
        ``DTENSOR_CLIENT_ID``.
    job_name : str or None
        ``DTENSOR_JOB_NAME``.
    parallel_executor : str or None
        ``DTENSOR_USE_PARALLEL_EXECUTOR``.
    mesh : str or None
        A mesh to create on every client, e.g. ``batch=4,model=2``.
    env : dict of str to str
        Environment of the clients beyond the notebook's.
    timeout : float
        Seconds that the clients may take to come up.
    name : str or None
        The cluster's name; None for the first free ``dtensor-N``.
    start_method : str
        ``fork`` or ``exec``.
    isolate : bool
        Give the clients their own network namespace.
    lease : float
        Minutes that the clients live on when their notebook is gone; 0 for not at all.
    platform : str or None
        Whose variables say what job this process is part of; None for those that are there.
    """

    device_type: str | None = None
    clients: int | None = None
    background: bool = False
    here: bool = False
    logical_cpus: int | None = None
    megcore: bool = False
    reset_context: bool = False
    coordination_service: bool = True
    jobs: str | None = None
    client_id: int | None = None
    job_name: str | None = None
    parallel_executor: str | None = None
    mesh: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    name: str | None = None
    start_method: str = "fork"
    isolate: bool = False
    lease: float = 0.0
    platform: str | None = None

    def description(self, environ: Mapping[str, str]) -> JobDescription | None:
        """Return what the platform says about the job that the notebook kernel is part of.

        Background clients that were asked for by number get their own variables, so the notebook's are
        for the notebook kernel alone; and addresses that were given stand for themselves.

        Returns
        -------
        JobDescription or None
            None where nobody says anything, or it is not asked for.

        Raises
        ------
        SpecError
            For variables that are wrong or disagree, and for a parameter server, which holds no client.
        """
        asked = self.background or self.jobs is not None or (self.clients is not None and not self.here)
        if asked and self.platform is not None:
            raise SpecError("--from reads the clients' addresses: leave out -n, --background and --jobs.")
        if asked:
            return None
        found = detect.detect(environ) if self.platform is None else detect.read(self.platform, environ)
        if found is not None and found.role == "ps":
            raise SpecError(f"{found}: it holds no DTensor client; dtensor-magic launch runs it.")
        return found

    def _with_environment(self, environ: Mapping[str, str], described: JobDescription | None) -> ClusterSpec:
        """Return the spec with what the environment says, where the user said nothing."""
        spec = self
        if described is not None and described.jobs:
            own = described.client_id if spec.client_id is None else spec.client_id
            spec = replace(spec, jobs=",".join(described.jobs), client_id=own)
        elif spec.jobs and spec.client_id is None and not spec.background and (spec.clients is None or spec.here):
            spec = replace(spec, client_id=dtensor.client_id(environ))
        return replace(
            spec,
            job_name=spec.job_name or dtensor.job_name(environ),
            parallel_executor=spec.parallel_executor or dtensor.parallel_executor(environ),
        )

    def plan(self, environ: Mapping[str, str]) -> ClusterPlan:
        """Check everything that can be known before a process starts.

        Parameters
        ----------
        environ : mapping of str to str
            The notebook's environment.

        Raises
        ------
        SpecError
            One line: what was wrong, and what is right.
        """
        described = self.description(environ)
        plan = self._with_environment(environ, described)._checked(environ)  # noqa: SLF001 - our own class
        if described is None:
            return plan
        unseen = described.unseen(len(plan.resources.node.accelerators)) if self.device_type is None else ""
        told = (f"read from {described}.", unseen, *plan.warnings)
        return replace(plan, warnings=tuple(text for text in told if text))

    def _checked(self, environ: Mapping[str, str]) -> ClusterPlan:
        jobs = parse_jobs(self.jobs or "")
        mode = self._mode(jobs)
        clients = self._client_count(mode, jobs)
        self._check_words(mode)
        device_type = devices.known_device_type(self.device_type, environ)
        devices.require_tensorflow()
        resources = self._resources(device_type, mode, clients, environ)
        per_client = len(resources.clients[0].accelerators) or self.logical_cpus or 1
        mesh = MeshSpec.parse(self.mesh).resolve(per_client, clients) if self.mesh else None
        self._check_places(mode, jobs, clients)
        return ClusterPlan(
            mode=mode,
            device_type=device_type,
            clients=clients,
            jobs=jobs,
            client_id=self.client_id or 0,
            mesh=mesh,
            resources=resources,
            warnings=self._warnings(device_type, mode, environ),
            options=ClientOptions(
                job_name=self.job_name,
                parallel_executor=self.parallel_executor,
                logical_cpus=self.logical_cpus,
                coordination_service=self.coordination_service,
                reset_context=self.reset_context and mode != "clients",
                megcore=self.megcore,
                timeout=self.timeout,
            ),
        )

    def _mode(self, jobs: tuple[str, ...]) -> Mode:
        if self.here and self.background:
            raise SpecError("--here and --background exclude each other: choose where the client runs.")
        if self.here and not jobs and (self.clients or 1) > 1:
            raise SpecError(
                "--here with several clients needs all their addresses: give --jobs or set DTENSOR_JOBS."
            )
        if self.background or ((self.clients or 1) > 1 and not self.here):
            return "clients"
        return "here" if jobs else "local"

    def _client_count(self, mode: Mode, jobs: tuple[str, ...]) -> int:
        if self.clients is not None:
            checked_counts(self.clients)
        clients = self.clients or (len(jobs) if mode == "here" else 1)
        if jobs and len(jobs) != clients:
            raise SpecError(f"jobs: {len(jobs)} addresses for {clients} clients; each client needs one.")
        if self.client_id is not None:
            if mode == "clients":
                raise SpecError("--client-id is for the notebook kernel as a client (--here with --jobs).")
            if not 0 <= self.client_id < clients:
                raise SpecError(f"client id {self.client_id} is out of range: it is 0 to {clients - 1}.")
        return clients

    def _check_words(self, mode: Mode) -> None:
        if self.timeout <= 0:
            raise SpecError(f"timeout: {self.timeout:g} is not a time; give seconds above 0.")
        if self.name is not None and not NAME.fullmatch(self.name):
            raise SpecError(f"name: {self.name!r} may hold letters, digits, '.', '_' and '-', 64 at most.")
        if self.job_name is not None and not _JOB_NAME.fullmatch(self.job_name):
            raise SpecError(f"job name: {self.job_name!r} must be a letter, then letters, digits or '_'.")
        if self.start_method not in ("fork", "exec"):
            raise SpecError(f"start method: {self.start_method!r} is not one; it is fork or exec.")
        if self.start_method == "fork" and not sys.platform.startswith("linux") and mode == "clients":
            raise SpecError("start method: fork needs Linux; use --start-method exec here.")
        if self.logical_cpus is not None and not 1 <= self.logical_cpus <= _MAX_LOGICAL_CPUS:
            raise SpecError(
                f"logical CPUs: {self.logical_cpus} is not a count; it is 1 to {_MAX_LOGICAL_CPUS} per client."
            )
        if self.isolate and mode != "clients":
            raise SpecError("--isolate is for background clients: give -n 2 or more, or --background.")
        if self.lease < 0:
            raise SpecError(f"lease: {self.lease:g} is not a time; give minutes above 0, or none.")
        if self.lease and mode != "clients":
            raise SpecError("--lease is for background clients: give -n 2 or more, or --background.")
        if self.lease and self.start_method != "fork":
            raise SpecError("--lease needs --start-method fork: exec'd clients end with their notebook.")
        if self.isolate and self.start_method != "fork":
            raise SpecError("--isolate needs --start-method fork.")
        if self.env and mode != "clients":
            raise SpecError("--env is for background clients; set os.environ for the notebook kernel itself.")
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                raise SpecError(f"env: {name!r} is not the name of a variable.")
            if name.startswith("DTENSOR_") and name in _OWN_OPTIONS:
                raise SpecError(f"env: {name} is set from {_OWN_OPTIONS[name]}; give that instead.")

    def _resources(self, device_type: str, mode: Mode, clients: int, environ: Mapping[str, str]) -> ResourcePlan:
        """Return what each client on this host gets."""
        here = clients if mode == "clients" else 1
        node = this_node(device_type, {**environ, **self.env})
        resources = divide(node, here)
        if device_type == "GPU" and not node.accelerators:
            raise SpecError("GPU: no GPU is visible on this host; use CPU, or look at CUDA_VISIBLE_DEVICES.")
        if device_type == "TPU" and not node.accelerators:
            raise SpecError("TPU: this host has none; use CPU, or start a runtime with a TPU.")
        count = len(resources.clients[0].accelerators)
        if count and self.logical_cpus is not None and self.logical_cpus < count:
            raise SpecError(
                f"logical CPUs: {self.logical_cpus} are fewer than the {count} {device_type}s of a client; "
                "give as many or more."
            )
        return resources

    def _check_places(self, mode: Mode, jobs: tuple[str, ...], clients: int) -> None:
        if mode == "clients":
            for job in jobs:
                place = split_address(job)
                if place is None or not is_local_host(place[0]):
                    raise SpecError(
                        f"jobs: {job} is not on this host; background clients run here. "
                        "For a client of a larger job use --here."
                    )
        elif mode == "here":
            own = jobs[self.client_id or 0]
            place = split_address(own)
            if place is not None and not is_local_host(place[0]):
                raise SpecError(
                    f"jobs: {own} is client {self.client_id or 0}'s address but not this host's; "
                    f"give the --client-id (0 to {clients - 1}) whose address is here."
                )

    def _warnings(self, device_type: str, mode: Mode, environ: Mapping[str, str]) -> tuple[str, ...]:
        warnings = []
        if self.megcore and device_type != "TPU":
            warnings.append(f"megcore is for TPU; on {device_type} TensorFlow ignores it.")
        if self.parallel_executor and not devices.reads_parallel_executor():
            version = devices.require_tensorflow()
            warnings.append(
                f"TensorFlow {version} does not read DTENSOR_USE_PARALLEL_EXECUTOR; "
                f"{self.parallel_executor!r} has no effect."
            )
        if self.reset_context and mode == "clients":
            warnings.append("reset-context has no effect on background clients: they are fresh processes.")
        if mode == "local" and dtensor.is_empty(environ):
            warnings.append("DTENSOR_JOBS is set but empty: local mode.")
        return tuple(warnings)


_OWN_OPTIONS = {
    "DTENSOR_JOBS": "--jobs",
    "DTENSOR_CLIENT_ID": "the client's number",
    "DTENSOR_NUM_CLIENTS": "-n",
    "DTENSOR_JOB_NAME": "--job-name",
    "DTENSOR_USE_PARALLEL_EXECUTOR": "--parallel-executor",
}
