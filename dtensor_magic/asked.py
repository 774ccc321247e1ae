"""What others ask of a cluster's owner, through the agent: the Jupyter server, for instance.

Answers are plain values: ``{"result": ...}``, or ``{"error": {"kind": ..., "message": ..., "detail": ...}}``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from .errors import AgentError, ClusterStateError, DTensorMagicError, KeepError, NameTakenError, SpecError
from .errors import describe_outcomes as describe

if TYPE_CHECKING:
    from .background import BackgroundCluster

#: What is wrong: the request; the state of things, which may change; neither, it failed.
ErrorKind = Literal["request", "state", "failed"]

#: Seconds for an interrupted cell to give its turn back before a restart.
_TURN_TIMEOUT = 5.0


def answer(cluster: BackgroundCluster, work: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Do `work` with `cluster` for somebody else, in a thread of its own, and say what came of it."""
    try:
        return {"result": _WORK[work](cluster, params)}
    except DTensorMagicError as error:
        return {"error": describe_error(error)}


def describe_error(error: DTensorMagicError) -> dict[str, Any]:
    """Return an error as a plain value: its kind, its one line, and what a client said."""
    kind: ErrorKind = "failed"
    if isinstance(error, (ClusterStateError, NameTakenError, KeepError)):
        kind = "state"
    elif isinstance(error, SpecError):
        kind = "request"
    return {"kind": kind, "message": str(error), "detail": getattr(error, "detail", "")}


def _interrupt(cluster: BackgroundCluster, params: Mapping[str, Any]) -> dict[str, Any]:
    if cluster.busy:
        tell(f"{params['by']} interrupts {cluster.name}.")
    outcomes = cluster.interrupt()
    # JSON has no other keys than text.
    return {"outcomes": {str(client): text for client, text in outcomes.items()}, "message": describe(outcomes)}


def _stacks(cluster: BackgroundCluster, _: Mapping[str, Any]) -> dict[str, str]:
    return {str(client): text for client, text in cluster.stacks().items()}


def _restart(cluster: BackgroundCluster, params: Mapping[str, Any]) -> dict[str, Any] | None:
    if params["interrupt"] and cluster.busy:
        cluster.interrupt()
        deadline = time.monotonic() + _TURN_TIMEOUT
        while cluster.busy and time.monotonic() < deadline:
            time.sleep(0.02)
    report = cluster.restart(
        clients=params["clients"], mesh=params["mesh"], keep=params["keep"], replay=params["replay"]
    )
    tell(f"{cluster.name} was restarted by {params['by']}{f'; {report}' if report is not None else ''}.")
    return None if report is None else asdict(report)


def tell(text: str) -> None:
    """Tell the owner's user, who did not do it here."""
    sys.stderr.write(f"dtensor_magic: {text}\n")
    sys.stderr.flush()


_WORK = {"clusters.interrupt": _interrupt, "clusters.restart": _restart, "clusters.stacks": _stacks}


def result(reply: Mapping[str, Any]) -> Any:
    """Return what :func:`answer` put into `reply`.

    Raises
    ------
    AskedError
        With the error that is in it.
    """
    if "error" in reply:
        raise AskedError(**reply["error"])
    return reply["result"]


class AskedError(AgentError):
    """The owner, or an errand, could not do what was asked.

    Attributes
    ----------
    kind : str
        ``request``: what was asked cannot be; ``state``: not now; ``failed``.
    detail : str
        What a client said: its traceback, or its last log lines.
    """

    def __init__(self, kind: ErrorKind, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.detail = detail
