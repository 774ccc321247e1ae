"""A Slurm step: what ``srun`` tells each of its tasks. No GPU is needed.

Ranks follow the node list's own order, which is numeric (n9 before n10), and the distribution of tasks over nodes.
TensorFlow's ``SlurmClusterResolver`` sorts hosts as text, asks for GPUs, and takes every distribution for
``block``. A batch script, and what it starts without ``srun``, is no step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from ..errors import SpecError
from .description import JobDescription
from .variables import base_port, is_set, whole, within

NAME = "slurm"

#: Ports below those that Linux gives to outgoing connections, and different for jobs that share a node.
_FIRST_PORT, _PORTS_PER_JOB, _JOBS = 20000, 64, 160

_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MOST_NODES = 100_000


def present(environ: Mapping[str, str]) -> bool:
    """Whether this is a task of a step."""
    return is_set(environ, "SLURM_PROCID") and (
        is_set(environ, "SLURM_STEP_NUM_TASKS") or is_set(environ, "SLURM_STEP_ID")
    )


def read(environ: Mapping[str, str]) -> JobDescription:
    """Read the step's variables; the job's, where the step has none of its own.

    Raises
    ------
    SpecError
        Outside a step, and for variables that do not fit each other.
    """
    if not present(environ):
        raise SpecError("slurm: this is no task of a step; start it with srun, in a job or as one.")
    nodes = expand_nodes(_variable(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    counts = expand_counts(_variable(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    tasks = whole(
        _variable(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), "SLURM_STEP_NUM_TASKS"
    )
    if len(nodes) != len(counts) or sum(counts) != tasks:
        raise SpecError(
            f"slurm: {len(nodes)} nodes, tasks on {len(counts)} nodes that make {sum(counts)}, and a step of "
            f"{tasks} tasks do not fit each other."
        )
    rank = within(whole(environ["SLURM_PROCID"], "SLURM_PROCID"), tasks, "SLURM_PROCID", "task")
    places = distribute(counts, environ.get("SLURM_DISTRIBUTION", ""), environ.get("SLURM_DIST_PLANESIZE", ""))
    _check_place(environ, rank, places[rank])
    job = environ.get("SLURM_JOB_ID", "0")
    port = base_port(environ, _FIRST_PORT + (int(job) if job.isdigit() else 0) % _JOBS * _PORTS_PER_JOB)
    return JobDescription(
        NAME,
        "SLURM_PROCID, SLURM_STEP_NODELIST",
        workers=tuple(f"{nodes[node]}:{port + local}" for node, local in places),
        index=rank,
        ports_given=False,
    )


def _variable(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if is_set(environ, name):
            return environ[name]
    raise SpecError(f"slurm: {names[0]} is not set.")


def expand_nodes(text: str) -> list[str]:
    """Expand a compressed node list: ``n[1-2],m5,o[03-04]x[1,3]``, in its own order.

    Raises
    ------
    SpecError
        For what is no node list.
    """
    nodes: list[str] = []
    for part in _split(text):
        pieces = re.findall(r"\[[^\[\]]*\]|[^\[\]]+", part)
        if "".join(pieces) != part or not part:
            raise SpecError(f"slurm: {text!r} is not a node list such as n[1-4,7],m1.")
        choices = [_expand_ranges(piece, text) if piece.startswith("[") else [piece] for piece in pieces]
        nodes.extend("".join(names) for names in itertools.product(*choices))
    return nodes


def _split(text: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    return re.sub(r"(\[[^\]]*\])|,", lambda match: match.group(1) or "\n", text.strip()).split("\n")


def _expand_ranges(piece: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in piece[1:-1].split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match.group(1), match.group(2) or match.group(1)) if match else ("", "")
        if match is None or not 0 <= int(last) - int(first) < _MOST_NODES:
            raise SpecError(f"slurm: {part!r} in {text!r} is not a range of nodes.")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


def expand_counts(text: str) -> list[int]:
    """Expand tasks per node: ``3(x2),1`` is 3, 3, 1.

    Raises
    ------
    SpecError
        For anything else.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None or int(match.group(2) or 1) > _MOST_NODES:
            raise SpecError(f"slurm: {part!r} in {text!r} is not a count of tasks such as 4 or 4(x2).")
        counts.extend([int(match.group(1))] * int(match.group(2) or 1))
    return counts


def distribute(counts: Sequence[int], distribution: str = "", plane: str = "") -> list[tuple[int, int]]:
    """Return the node, and the number on that node, of each rank.

    Parameters
    ----------
    counts : sequence of int
        Tasks on each node.
    distribution : str
        ``SLURM_DISTRIBUTION``; its first word is about nodes: ``block`` (also without any), ``cyclic``, ``plane``.
    plane : str
        ``SLURM_DIST_PLANESIZE``.

    Raises
    ------
    SpecError
        For a distribution that cannot be told from its name.
    """
    word = re.split(r"[:,=]", distribution.strip().lower() or "block")[0]
    if word == "plane":
        size = whole(plane or distribution.partition("=")[2], "SLURM_DIST_PLANESIZE")
    elif word in ("block", "cyclic", "unknown"):
        size = 1 if word == "cyclic" else max(counts, default=1)
    else:
        raise SpecError(
            f"slurm: the ranks' places are not known with distribution {distribution!r}; use srun -m block."
        )
    places: list[tuple[int, int]] = []
    started = [0] * len(counts)
    while len(places) < sum(counts):
        for node, count in enumerate(counts):
            here = range(started[node], min(started[node] + max(size, 1), count))
            places.extend((node, local) for local in here)
            started[node] += len(here)
    return places


def _check_place(environ: Mapping[str, str], rank: int, place: tuple[int, int]) -> None:
    """Refuse, where Slurm put this task elsewhere than its variables' form says: the peers would look there."""
    for name, ours in zip(("SLURM_NODEID", "SLURM_LOCALID"), place, strict=True):
        if is_set(environ, name) and whole(environ[name], name) != ours:
            raise SpecError(
                f"slurm: rank {rank} has {name} {environ[name]} and not {ours}, so the ranks are not distributed "
                "as SLURM_DISTRIBUTION says; use srun -m block."
            )
