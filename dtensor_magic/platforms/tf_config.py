"""``TF_CONFIG``, as TensorFlow's ``TFConfigClusterResolver`` reads it and Kubeflow and Volcano write it.

The chief ("master" in older jobs, tensorflow#27058) is client 0 and the workers follow, which is the count of
``MultiWorkerMirroredStrategy``. A list may be sparse, a mapping of indices to addresses (Kubeflow's dynamic
workers).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import SpecError
from .description import JobDescription, Role
from .variables import addresses, is_set, whole, within

NAME = "tf_config"

_VARIABLE = "TF_CONFIG"
_ROLES: dict[str, Role] = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
}


def present(environ: Mapping[str, str]) -> bool:
    """Whether ``TF_CONFIG`` is set. Kubeflow leaves it out where one replica is the job (kubeflow#4591)."""
    return is_set(environ, _VARIABLE)


def read(environ: Mapping[str, str]) -> JobDescription:
    """Read ``TF_CONFIG``; without a cluster in it, the process is alone.

    Raises
    ------
    SpecError
        For anything that TensorFlow would refuse, and for a sparse cluster whose clients are not all known.
    """
    if not present(environ):
        raise SpecError("TF_CONFIG: not set here.")
    config = _mapping(_parse(environ[_VARIABLE]), "it")
    listed = config.get("cluster") or config.get("sparseCluster") or {}
    cluster = {name: _tasks(name, tasks) for name, tasks in _mapping(listed, "cluster").items() if tasks}
    if not cluster:
        return JobDescription(NAME, _VARIABLE)
    role, index = _task(config.get("task"))
    _check(cluster, role, index)
    dense = {name: _dense(name, tasks, role) for name, tasks in cluster.items()}
    return JobDescription(
        NAME,
        _VARIABLE,
        chief=dense.get("chief") or dense.get("master") or (),
        workers=dense.get("worker", ()),
        ps=dense.get("ps", ()),
        role=role,
        index=index,
        sparse=any(max(tasks) >= len(tasks) for tasks in cluster.values()) or "sparseCluster" in config,
    )


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SpecError(f"TF_CONFIG: not JSON ({error}).") from None


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(f'TF_CONFIG: {what} is not an object such as {{"worker": ["host:port"]}}.')
    return value


def _tasks(name: str, tasks: Any) -> dict[int, str]:
    if name not in _ROLES:
        raise SpecError(f"TF_CONFIG: {name!r} is no job; they are chief, worker, ps and evaluator.")
    if isinstance(tasks, list):
        tasks = dict(enumerate(tasks))
    elif not isinstance(tasks, dict):
        raise SpecError(f"TF_CONFIG: {name} is neither a list of addresses nor a mapping of indices to them.")
    for address in tasks.values():
        if not isinstance(address, str):
            raise SpecError(f"TF_CONFIG: {name} holds {address!r}, which is no address.")
    return {whole(index, f"TF_CONFIG: {name}"): address for index, address in sorted(tasks.items())}


def _task(task: Any) -> tuple[Role, int]:
    if not isinstance(task, dict) or "type" not in task:
        raise SpecError('TF_CONFIG: task is missing; it says which one this is: {"type": "worker", "index": 0}.')
    name = str(task["type"]).strip().lower()
    if name not in _ROLES:
        raise SpecError(f"TF_CONFIG: task type {name!r} is unknown; it is chief, worker, ps or evaluator.")
    return _ROLES[name], whole(task.get("index", 0), "TF_CONFIG: task index")


def _check(cluster: Mapping[str, Mapping[int, str]], role: Role, index: int) -> None:
    if "chief" in cluster and "master" in cluster:
        raise SpecError("TF_CONFIG: chief and master are two words for one task; give one.")
    for name in ("chief", "master", "evaluator"):
        if len(cluster.get(name, ())) > 1:
            raise SpecError(f"TF_CONFIG: there are {len(cluster[name])} tasks of {name}; there can be one.")
    if role == "evaluator":
        # It evaluates beside the cluster, and TensorFlow lets it be missing there.
        return
    tasks = cluster.get("master" if role == "chief" and "master" in cluster else role, {})
    if index not in tasks:
        within(index, len(tasks), "TF_CONFIG", role)
        raise SpecError(f"TF_CONFIG: there is no {role} {index} in the cluster.")


def _dense(name: str, tasks: Mapping[int, str], role: Role) -> tuple[str, ...]:
    """Return the addresses in order; they must all be known where this process is a client."""
    if name in ("worker", "chief", "master") and role in ("worker", "chief"):
        for missing in range(max(tasks) + 1):
            if missing not in tasks:
                raise SpecError(
                    f"TF_CONFIG: the cluster is sparse, and {name} {missing} is not in it; DTensor's clients need "
                    "the addresses of all. On Kubeflow, set enableDynamicWorker to false."
                )
    return addresses(",".join(tasks[index] for index in sorted(tasks)), f"TF_CONFIG: {name}")[0]
