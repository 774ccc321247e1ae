"""Volcano's ``svc`` and ``env`` plugins: ``VC_WORKER_HOSTS`` and kin, ``VC_TASK_INDEX``.

The host lists have no ports, and no variable says which list a pod is in: its own name does. Volcano's
``tensorflow`` plugin writes ``TF_CONFIG``, which has its own reader. ModelArts runs on Volcano and has more to say.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import SpecError
from ..jobs import split_address
from . import modelarts
from .description import JobDescription, Role
from .variables import addresses, base_port, is_set, whole, within

NAME = "volcano"

_LISTS: dict[str, Role] = {
    "VC_CHIEF_HOSTS": "chief",
    "VC_MASTER_HOSTS": "chief",
    "VC_WORKER_HOSTS": "worker",
    "VC_PS_HOSTS": "ps",
    "VC_EVALUATOR_HOSTS": "evaluator",
}


def present(environ: Mapping[str, str]) -> bool:
    """Whether this is a pod of a Volcano job with workers, and none of ModelArts."""
    return is_set(environ, "VC_WORKER_HOSTS") and not modelarts.present(environ)


def read(environ: Mapping[str, str]) -> JobDescription:
    """Read the pod's variables.

    Raises
    ------
    SpecError
        For malformed lists, and where the pod cannot be found in them.
    """
    if not is_set(environ, "VC_WORKER_HOSTS"):
        raise SpecError(
            "volcano: VC_WORKER_HOSTS is not set; the job needs the svc plugin and a task named worker."
        )
    names = [name for name in _LISTS if is_set(environ, name)]
    if "VC_CHIEF_HOSTS" in names and "VC_MASTER_HOSTS" in names:
        raise SpecError("volcano: the job has a task chief and a task master, which mean the same; rename one.")
    tasks = {_LISTS[name]: addresses(environ[name], name, base_port(environ))[0] for name in names}
    if len(tasks.get("chief", ())) > 1:
        raise SpecError(f"volcano: there are {len(tasks['chief'])} chiefs; there can be one.")
    role, index = _own_task(environ, tasks)
    return JobDescription(
        NAME,
        ", ".join(names),
        chief=tasks.get("chief", ()),
        workers=tasks["worker"],
        ps=tasks.get("ps", ()),
        role=role,
        index=index,
        ports_given=False,
    )


def _own_task(environ: Mapping[str, str], tasks: Mapping[Role, tuple[str, ...]]) -> tuple[Role, int]:
    """Return what this pod is: the entry that begins with its name, or with one list its task index."""
    own = environ.get("HOSTNAME", "").partition(".")[0]
    for role, listed in tasks.items():
        for index, address in enumerate(listed):
            place = split_address(address)
            if own and place is not None and place[0].partition(".")[0] == own:
                return role, index
    variable = "VC_TASK_INDEX" if is_set(environ, "VC_TASK_INDEX") else "VK_TASK_INDEX"
    if len(tasks) > 1 or not is_set(environ, variable):
        raise SpecError(
            f"volcano: HOSTNAME {own!r} is in none of {', '.join(name for name in _LISTS if name in environ)}."
        )
    return "worker", within(whole(environ[variable], variable), len(tasks["worker"]), variable, "worker")
