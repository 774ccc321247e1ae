"""ModelArts' training containers.

``TF_WORKER_HOSTS`` and ``TF_PS_HOSTS`` hold the addresses of a TensorFlow job, in brackets or without;
``MA_TASK_NAME`` says which of the two a container is, ``VC_TASK_INDEX`` which one of them. Jobs of other engines
have ``VC_WORKER_HOSTS``, which are names without ports. On one node ``VC_TASK_INDEX`` means nothing (its page).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import SpecError
from .description import JobDescription, Role
from .variables import addresses, base_port, is_set, whole, within

NAME = "modelarts"

_ROLES: dict[str, Role] = {"ps": "ps", "worker": "worker", "work": "worker"}


def present(environ: Mapping[str, str]) -> bool:
    """Whether this is a training container of ModelArts."""
    return any(is_set(environ, name) for name in ("TF_WORKER_HOSTS", "MA_TASK_NAME", "MA_NUM_HOSTS"))


def task_role(name: str, where: str = "MA_TASK_NAME") -> Role:
    """Return what a task of that `name` is: ``ps``, or ``worker`` or ``work``, in any case.

    Raises
    ------
    SpecError
        For any other name.
    """
    role = _ROLES.get(name.strip().lower())
    if role is None:
        raise SpecError(f"{where}: {name!r} is no task of a TensorFlow job; it is ps or worker.")
    return role


def read(environ: Mapping[str, str]) -> JobDescription:
    """Read the container's variables.

    Raises
    ------
    SpecError
        For malformed or missing ones, and for a list that has more or fewer nodes than were declared.
    """
    hosts = "TF_WORKER_HOSTS" if is_set(environ, "TF_WORKER_HOSTS") else "VC_WORKER_HOSTS"
    workers, ports_given = addresses(environ.get(hosts, ""), hosts, base_port(environ))
    ps, ps_ports_given = addresses(environ.get("TF_PS_HOSTS", ""), "TF_PS_HOSTS", base_port(environ))
    nodes = whole(environ["MA_NUM_HOSTS"], "MA_NUM_HOSTS") if is_set(environ, "MA_NUM_HOSTS") else len(workers)
    if nodes > 1 and not workers:
        raise SpecError(
            f"MA_NUM_HOSTS: there are {nodes} nodes, but neither TF_WORKER_HOSTS nor VC_WORKER_HOSTS names them."
        )
    role = task_role(environ["MA_TASK_NAME"]) if is_set(environ, "MA_TASK_NAME") else "worker"
    index = 0
    if role == "ps" or len(workers) > 1:
        _check_count(environ, len(workers))
        if not is_set(environ, "VC_TASK_INDEX"):
            raise SpecError("VC_TASK_INDEX: not set, so which task of the job this is cannot be known.")
        index = whole(environ["VC_TASK_INDEX"], "VC_TASK_INDEX")
        within(index, len(ps) if role == "ps" else len(workers), "VC_TASK_INDEX", role)
    return JobDescription(
        NAME,
        ", ".join([name for name in (hosts, "TF_PS_HOSTS") if is_set(environ, name)] or ["one node"]),
        workers=workers,
        ps=ps,
        role=role,
        index=index,
        ports_given=ports_given and ps_ports_given,
        address=environ.get("MA_CURRENT_IP") or None,
        accelerators=whole(environ["MA_NUM_GPUS"], "MA_NUM_GPUS") if is_set(environ, "MA_NUM_GPUS") else None,
    )


def _check_count(environ: Mapping[str, str], count: int) -> None:
    if is_set(environ, "VC_WORKER_NUM"):
        declared = whole(environ["VC_WORKER_NUM"], "VC_WORKER_NUM")
        if declared != count:
            raise SpecError(f"VC_WORKER_NUM: {declared} workers are declared, but {count} are named.")
