"""What a platform says about a job and this process's part in it: :class:`JobDescription`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..jobs import split_address

Role = Literal["chief", "worker", "ps", "evaluator"]


@dataclass(frozen=True)
class JobDescription:
    """A job, and which of its tasks this process is.

    Chief and workers are DTensor clients: the chief is client 0, the workers follow in their order, which is also
    how TensorFlow's ``MultiWorkerMirroredStrategy`` counts them. Parameter servers and evaluators are none.

    Attributes
    ----------
    platform : str
        Who says so: ``dtensor``, ``modelarts``, ``tf_config``, ``slurm``, ``volcano``, ``sagemaker``, ``gke_tpu``.
    source : str
        The variables that it was read from.
    chief, workers, ps : tuple of str
        ``host:port`` of each task. All are empty where one process is the whole job.
    role : str
        What this process is.
    index : int
        Its number among the tasks of its role.
    ports_given : bool
        Whether the platform named the ports; where it names hosts alone, they are ours.
    address : str or None
        This node's own address, where the platform tells it.
    accelerators : int or None
        Accelerators of this node, where the platform tells it.
    sparse : bool
        Whether the platform names some of the job's tasks only.
    """

    platform: str
    source: str
    chief: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    ps: tuple[str, ...] = ()
    role: Role = "worker"
    index: int = 0
    ports_given: bool = True
    address: str | None = None
    accelerators: int | None = None
    sparse: bool = False

    @property
    def clients(self) -> tuple[str, ...]:
        """The addresses of all DTensor clients, in the order of their ids."""
        return self.chief + self.workers

    @property
    def alone(self) -> bool:
        """Whether one process is all there is to compute, so that DTensor is in local mode.

        ``DTENSOR_JOBS`` with one address was set by someone who wants multi-client mode.
        """
        return len(self.clients) <= (0 if self.platform == "dtensor" else 1)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The addresses for ``DTENSOR_JOBS``; empty for local mode."""
        return () if self.alone or self.role == "evaluator" else self.clients

    @property
    def client_id(self) -> int:
        """This process's client id; 0 where it is no client of a larger job."""
        if self.alone or self.role in ("chief", "ps", "evaluator"):
            return 0
        return len(self.chief) + self.index

    @property
    def tasks(self) -> dict[str, tuple[str, ...]]:
        """The addresses by role, as TensorFlow's ``ClusterSpec`` takes them."""
        named = {"chief": self.chief, "worker": self.workers, "ps": self.ps}
        return {role: addresses for role, addresses in named.items() if addresses}

    def agrees(self, other: JobDescription) -> bool:
        """Whether both say the same. Where one of them had to choose the ports, the hosts decide."""
        if self.alone or other.alone:
            # It was one process that the platform started; whether it is a client of more, it does not know.
            return True
        if (self._kind, self.client_id, self.index * (self.role in ("ps", "evaluator"))) != (
            other._kind,
            other.client_id,
            other.index * (other.role in ("ps", "evaluator")),
        ):
            return False
        ports = self.ports_given and other.ports_given
        return _same(self.clients, other.clients, ports=ports) and (
            not (self.ps and other.ps) or _same(self.ps, other.ps, ports=ports)
        )

    def unseen(self, accelerators: int) -> str:
        """Say that the platform gave this node other accelerators than can be seen; nothing where it agrees."""
        if self.accelerators in (None, accelerators):
            return ""
        return (
            f"{self.platform} gives this node {self.accelerators} accelerators, but {accelerators} can be seen; "
            "look at CUDA_VISIBLE_DEVICES, the driver, and TensorFlow's build."
        )

    @property
    def _kind(self) -> str:
        return self.role if self.role in ("ps", "evaluator") else "client"

    def __str__(self) -> str:
        told = f"{self.platform} ({self.source}): "
        if self.role == "ps":
            told += f"parameter server {self.index} of {len(self.ps)}"
        elif self.role == "evaluator":
            told += f"evaluator {self.index}"
        elif self.alone:
            told += "one process alone, local mode"
        else:
            told += f"client {self.client_id} of {len(self.clients)}, {','.join(self.clients)}"
        if self.ps and self.role != "ps":
            told += f", with {len(self.ps)} parameter server{'s' * (len(self.ps) > 1)}"
        return f"{told}, on {self.address}" if self.address else told


def _same(ours: tuple[str, ...], theirs: tuple[str, ...], *, ports: bool) -> bool:
    return len(ours) == len(theirs) and all(
        _same_place(one, other, port=ports) for one, other in zip(ours, theirs, strict=True)
    )


def _same_place(one: str, other: str, *, port: bool) -> bool:
    places = split_address(one), split_address(other)
    if places[0] is None or places[1] is None:
        return one == other
    # A short name is the beginning of the full one: n1 and n1.cluster.
    labels = [place[0].split(".") for place in places if place is not None]
    short, full = sorted(labels, key=len)
    return full[: len(short)] == short and (not port or places[0][1] == places[1][1])
