"""What each process on a node gets: accelerators, cores, memory, threads.

As ModelArts divides a node: one process alone has all of it; where parameter servers and workers share a node,
cores and memory are halved between the two kinds and the accelerators go to the workers; and what the clients of a
node have together is divided evenly among them.

Threads and accelerators are set, and processes are pinned to their cores. Memory is told; only a launcher that is
asked to limits it, since a process may well use what its neighbours leave.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from . import cgroup, devices
from .agent.environment import BLAS_VARIABLES
from .errors import SpecError

#: What TensorFlow's inter-op pool keeps at least: an operation that waits for a peer must not block the others.
MIN_INTER_OP = 2

#: Clients, or parameter servers, that one node can have.
MAX_CLIENTS = 1024

#: Who sets one of these divides the cores without us.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", *BLAS_VARIABLES)


@dataclass(frozen=True)
class Node:
    """What this node, or this container, has for us.

    Attributes
    ----------
    cores : int
        CPU cores that may be used.
    cpus : tuple of int
        Their numbers; empty where a quota allows fewer than there are, so that no core is ours alone.
    memory : int or None
        Bytes; None where it is not known.
    accelerators : tuple of str
        As ``CUDA_VISIBLE_DEVICES`` names them.
    device_type : str
        What the accelerators are; CPU for none.
    """

    cores: int
    cpus: tuple[int, ...]
    memory: int | None
    accelerators: tuple[str, ...] = ()
    device_type: str = "CPU"


@dataclass(frozen=True)
class Share:
    """What one process gets.

    Attributes
    ----------
    role : str
        ``client`` or ``ps``.
    number : int
        Its number among those of its role on this node.
    cores : int
    cpus : tuple of int
        The cores to pin it to; empty for none.
    memory : int or None
        Bytes.
    accelerators : tuple of str
    threads : int or None
        Threads of TensorFlow, NumPy and OpenMP; None for their own choice.
    """

    role: Literal["client", "ps"]
    number: int
    cores: int
    cpus: tuple[int, ...]
    memory: int | None
    accelerators: tuple[str, ...]
    threads: int | None

    def thread_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that hold a program to its threads, but for those that `environ` has."""
        if self.threads is None:
            return {}
        ours = {
            "TF_NUM_INTRAOP_THREADS": self.threads,
            "TF_NUM_INTEROP_THREADS": max(MIN_INTER_OP, self.threads),
            **dict.fromkeys(BLAS_VARIABLES, self.threads),
        }
        return {name: str(count) for name, count in ours.items() if name not in environ}


@dataclass(frozen=True)
class ResourcePlan:
    """A node and its division.

    Attributes
    ----------
    node : Node
    shares : tuple of Share
        The clients' in the order of their numbers, then the parameter servers'.
    """

    node: Node
    shares: tuple[Share, ...]

    @property
    def clients(self) -> tuple[Share, ...]:
        """The clients' shares."""
        return tuple(share for share in self.shares if share.role == "client")

    @property
    def ps(self) -> tuple[Share, ...]:
        """The parameter servers' shares."""
        return tuple(share for share in self.shares if share.role == "ps")


def this_node(device_type: str, environ: Mapping[str, str] = os.environ) -> Node:
    """Look at this node, without touching a device.

    Parameters
    ----------
    device_type : str
        CPU, GPU or TPU: the accelerators that count.
    environ : mapping of str to str
        Its ``CUDA_VISIBLE_DEVICES`` chooses GPUs.
    """
    accelerators: tuple[str, ...] = ()
    if device_type == "GPU":
        accelerators = tuple(devices.visible_gpus(environ))
    elif device_type == "TPU":
        accelerators = tuple(str(number) for number in range(devices.visible_tpus()))
    cores, cpus = devices.usable_cores(), devices.usable_cpus()
    total, limit = psutil.virtual_memory().total, cgroup.memory_limit()
    return Node(
        cores=cores,
        cpus=cpus if len(cpus) == cores else (),
        memory=total if limit is None else min(total, limit),
        accelerators=accelerators,
        device_type=device_type,
    )


def checked_counts(clients: int, ps: int = 0) -> tuple[int, int]:
    """Return the counts, if a node can have so many.

    Raises
    ------
    SpecError
        If it cannot.
    """
    if not 1 <= clients <= MAX_CLIENTS:
        raise SpecError(f"clients: {clients} is not a client count; it is 1 to {MAX_CLIENTS}.")
    if not 0 <= ps <= MAX_CLIENTS:
        raise SpecError(f"ps: {ps} is not a count of parameter servers; it is 0 to {MAX_CLIENTS}.")
    return clients, ps


def divide(node: Node, clients: int, ps: int = 0) -> ResourcePlan:
    """Divide `node` among clients and parameter servers.

    Parameters
    ----------
    node : Node
    clients, ps : int
        How many of each run on it.

    Raises
    ------
    SpecError
        If the accelerators do not divide evenly among the clients; a TPU does not divide at all.
    """
    if node.device_type == "TPU" and clients > 1:
        raise SpecError("TPU: one client per host; a TPU belongs to one process. Use -n 1.")
    if clients and len(node.accelerators) % clients:
        raise SpecError(
            f"{node.device_type}: {len(node.accelerators)} {node.device_type}s do not divide among {clients} "
            "clients; every client needs as many."
        )
    if clients + ps == 1:
        # Alone: nothing to hold it to.
        role: Literal["client", "ps"] = "client" if clients else "ps"
        whole = Share(role, 0, node.cores, (), node.memory, node.accelerators if clients else (), None)
        return ResourcePlan(node, (whole,))
    for_ps = node.cores // 2 if ps and clients else node.cores * bool(ps)
    memory_for_ps = _part(node.memory, 2) if ps and clients else node.memory
    memory_for_clients = memory_for_ps if ps else node.memory
    split = node.cores - for_ps
    return ResourcePlan(
        node,
        (
            *_shares("client", clients, split, node.cpus[:split], memory_for_clients, node.accelerators),
            *_shares("ps", ps, for_ps, node.cpus[split:], memory_for_ps, ()),
        ),
    )


def _shares(
    role: Literal["client", "ps"],
    count: int,
    cores: int,
    cpus: Sequence[int],
    memory: int | None,
    accelerators: Sequence[str],
) -> list[Share]:
    each = len(accelerators) // count if count else 0
    shares = []
    for number in range(count):
        first, last = number * cores // count, (number + 1) * cores // count
        # Fewer cores than processes: they share, each with one thread, and nobody is pinned.
        own = max(1, cores // count)
        shares.append(
            Share(
                role=role,
                number=number,
                cores=max(1, last - first),
                cpus=tuple(cpus[first:last]) if cores >= count else (),
                memory=_part(memory, count),
                accelerators=tuple(accelerators[number * each : (number + 1) * each]),
                threads=own,
            )
        )
    return shares


def _part(memory: int | None, count: int) -> int | None:
    return None if memory is None else memory // count


def divides_own_cores(environ: Mapping[str, str]) -> bool:
    """Whether the user said how many threads there should be, and so takes the cores in hand."""
    return any(environ.get(name) for name in THREAD_VARIABLES)


def pin(cpus: Sequence[int], environ: Mapping[str, str] = os.environ) -> None:
    """Keep this thread, and those that it starts from now on, to `cpus`, where there are any.

    Threads that run already, such as those that serve a kernel's channels, stay free.
    """
    if cpus and hasattr(os, "sched_setaffinity") and not divides_own_cores(environ):
        os.sched_setaffinity(0, cpus)
