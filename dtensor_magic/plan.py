"""What was settled from a user's wish: :class:`ClusterPlan`, and what each client is told, :class:`ClientSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .meshes import MeshSpec
from .resources import ResourcePlan

Mode = Literal["local", "here", "clients"]


@dataclass(frozen=True)
class ClientOptions:
    """What all clients of a cluster are told alike.

    Attributes
    ----------
    job_name, parallel_executor : str or None
        ``DTENSOR_JOB_NAME`` and ``DTENSOR_USE_PARALLEL_EXECUTOR``.
    logical_cpus : int or None
        ``num_logical_cpu_devices``.
    coordination_service, reset_context, megcore : bool
    timeout : float
        Seconds to wait for the peers.
    """

    job_name: str | None = None
    parallel_executor: str | None = None
    logical_cpus: int | None = None
    coordination_service: bool = True
    reset_context: bool = False
    megcore: bool = False
    timeout: float = 60.0


@dataclass(frozen=True)
class ClusterPlan:
    """A checked ``ClusterSpec``: everything settled but the ports that this machine will choose.

    Attributes
    ----------
    mode : str
        ``local``: the notebook kernel, no jobs. ``here``: the notebook kernel is one client of many.
        ``clients``: background kernels.
    device_type : str
    clients : int
    jobs : tuple of str
        Empty in local mode, and where ports are still to be reserved.
    client_id : int
        The notebook kernel's own id, where it is a client.
    mesh : MeshSpec or None
        With every size known.
    resources : ResourcePlan
        What each client on this host gets.
    warnings : tuple of str
    options : ClientOptions
    """

    mode: Mode
    device_type: str
    clients: int
    jobs: tuple[str, ...]
    mesh: MeshSpec | None
    resources: ResourcePlan
    warnings: tuple[str, ...]
    options: ClientOptions
    client_id: int = 0

    @property
    def accelerators(self) -> tuple[tuple[str, ...], ...]:
        """The accelerators of each client on this host."""
        return tuple(share.accelerators for share in self.resources.clients)

    @property
    def multi_client(self) -> bool:
        """Whether clients need addresses: not with a single client that was given none."""
        return self.clients > 1 or bool(self.jobs)

    def client(self, client_id: int, jobs: tuple[str, ...]) -> ClientSpec:
        """Return what client `client_id` is told, when all clients have the addresses `jobs`."""
        share = self.resources.clients[client_id if self.mode == "clients" else 0]
        return ClientSpec(
            client_id=client_id,
            num_clients=self.clients,
            device_type=self.device_type,
            jobs=jobs,
            mesh=self.mesh.dims if self.mesh else (),
            accelerators=share.accelerators,
            threads=share.threads,
            cpus=share.cpus,
            options=self.options,
        )


@dataclass(frozen=True)
class ClientSpec:
    """What one client is told. Travels as JSON, so it holds plain values only.

    Attributes
    ----------
    client_id, num_clients : int
    device_type : str
    jobs : tuple of str
        ``DTENSOR_JOBS``; empty in local mode.
    mesh : tuple of (str, int)
        Dimensions of the mesh to create; empty for none.
    accelerators : tuple of str
        The GPUs that this client may see.
    threads : int or None
        Threads that this client may use, so that all together do not oversubscribe the cores; None for
        TensorFlow's own choice.
    cpus : tuple of int
        The cores that this client is pinned to; empty for none.
    options : ClientOptions
    """

    client_id: int
    num_clients: int
    device_type: str
    jobs: tuple[str, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    accelerators: tuple[str, ...] = ()
    threads: int | None = None
    cpus: tuple[int, ...] = ()
    options: ClientOptions = ClientOptions()

    def to_json(self) -> dict[str, Any]:
        """Return the spec as a dict that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClientSpec:
        """Make a spec of what :meth:`to_json` made of one."""
        values = dict(data)
        values["jobs"] = tuple(values["jobs"])
        values["mesh"] = tuple((name, size) for name, size in values["mesh"])
        values["accelerators"] = tuple(values["accelerators"])
        values["cpus"] = tuple(values["cpus"])
        values["options"] = ClientOptions(**values["options"])
        return cls(**values)

    def variables(self) -> dict[str, str | None]:
        """Return the ``DTENSOR_*`` variables; None means that the variable must not be set.

        ``DTENSOR_JOBS`` is unset, never empty, in local mode: TensorFlow 2.20 takes an empty one for a
        list with one empty job. ``DTENSOR_NUM_CLIENTS`` is read by the C++ side.
        """
        multi = bool(self.jobs)
        return {
            "DTENSOR_JOBS": ",".join(self.jobs) if multi else None,
            "DTENSOR_CLIENT_ID": str(self.client_id) if multi else None,
            "DTENSOR_NUM_CLIENTS": str(self.num_clients) if multi else None,
            "DTENSOR_JOB_NAME": self.options.job_name,
            "DTENSOR_USE_PARALLEL_EXECUTOR": self.options.parallel_executor,
        }
