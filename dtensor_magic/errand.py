"""``python -m dtensor_magic.errand``: one thing done in the Python environment of a cluster's clients.

The Jupyter server, which may live in another environment, sends one here to start a cluster, which is then left
running for a notebook to take up, or to do what only an owner can do with a cluster that has none. The request is
one line of JSON on standard input, the answer one on standard output; see `asked` for its form.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .asked import answer, describe_error
from .cluster import check_name_free, start_cluster
from .errors import DTensorMagicError
from .jobs import check_ports_free
from .plan import ClusterPlan
from .spec import ClusterSpec


def perform(errand: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Do what `errand` says, and return the answer.

    Parameters
    ----------
    errand : mapping
        ``do``: ``check`` or ``start`` with a ``spec``, and ``lease`` in minutes; or ``own``, with the ``work`` of a
        cluster's owner, its ``params``, and the ``lease`` in minutes that the cluster has afterwards.
    environ : mapping of str to str
    """
    try:
        return _ERRANDS[errand["do"]](errand, environ)
    except DTensorMagicError as error:
        return {"error": describe_error(error)}


def _check(errand: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    spec = ClusterSpec(**errand["spec"])
    plan = spec.plan(environ)
    if spec.name:
        check_name_free(spec.name)
    check_ports_free(plan.jobs)
    return {"result": describe_plan(plan)}


def describe_plan(plan: ClusterPlan) -> dict[str, Any]:
    """Return what a form shows of `plan`."""
    per_client = len(plan.accelerators[0]) or plan.options.logical_cpus or 1
    return {
        "device_type": plan.device_type,
        "clients": plan.clients,
        "devices": plan.clients * per_client,
        "mesh": dict(plan.mesh.dims) if plan.mesh else None,
        "warnings": list(plan.warnings),
    }


def _start(errand: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    from .background import BackgroundCluster

    cluster = start_cluster(ClusterSpec(**errand["spec"]), environ)
    assert isinstance(cluster, BackgroundCluster)
    cluster.detach(errand["lease"])
    return {"result": {"name": cluster.name, "warnings": list(cluster.plan.warnings)}}


def _own(errand: Mapping[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    from .background import BackgroundCluster

    cluster = BackgroundCluster.attach(errand["params"]["name"])
    try:
        return answer(cluster, errand["work"], errand["params"])
    finally:
        if cluster.alive:
            cluster.detach(errand["lease"])


_ERRANDS: dict[str, Callable[[Mapping[str, Any], Mapping[str, str]], dict[str, Any]]] = {
    "check": _check,
    "start": _start,
    "own": _own,
}


def main() -> None:
    """Do the errand that standard input names."""
    errand = json.loads(sys.stdin.readline())
    # Whatever else is printed here is for the log.
    answers, sys.stdout = sys.stdout, sys.stderr
    if not getattr(sys.flags, "safe_path", False):
        # The folder that this process was started in, which is no place for the clients to import from.
        sys.path.pop(0)
    if errand.get("cwd"):
        os.chdir(errand["cwd"])
    answers.write(json.dumps(perform(errand, os.environ)) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
