"""Say why a cluster did not come up: by the words of the client that failed, or naming those that are late."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import StartError
from .plan import ClusterPlan
from .state import ClientState, ClusterState, Phase, name_clients


def find_culprit(state: ClusterState, exits: Mapping[int, str]) -> ClientState:
    """Return the client that failed: one with an error of its own before those that only carry the news."""
    ended = [client for client in state.clients if client.id in exits]
    return min(ended, key=lambda client: (client.phase != Phase.FAILED, client.since))


def start_error(name: str, culprit: ClientState, exit_text: str, log: str) -> StartError:
    """Return the error of a start that ended because `culprit`'s process did."""
    if culprit.phase == Phase.FAILED:
        reason = culprit.error.rstrip().rpartition("\n")[2]
        message = f"client {culprit.id} of {name} could not initialise DTensor: {reason}"
        return StartError(message, client=culprit.id, detail=culprit.error)
    message = f"client {culprit.id} of {name} {exit_text} before it was ready"
    return StartError(message, client=culprit.id, detail=log)


def late_clients(state: ClusterState) -> list[ClientState]:
    """Return the clients that are not ready."""
    return [client for client in state.clients if client.phase != Phase.READY]


def late_error(plan: ClusterPlan, state: ClusterState, log: str) -> StartError:
    """Return the error of a start that took too long."""
    late = late_clients(state)
    told = [f"client {client.id} is {client.phase.value}" for client in late]
    missing = sorted(set(range(plan.clients)) - {client.id for client in state.clients})
    if missing:
        told.append(f"{name_clients(missing)} not forked yet")
    where = ", ".join(told) or "no client answers"
    return StartError(
        f"{state.name} did not come up within {plan.options.timeout:g} s: {where}. "
        "Raise --timeout if this machine is slow.",
        missing=[f"client {client.id}" for client in late] or [f"client {client}" for client in missing],
        detail=log,
    )


def no_answer(plan: ClusterPlan) -> StartError:
    """Return the error of a start whose agent does not answer."""
    return StartError(f"the agent did not answer within {plan.options.timeout:g} s; raise --timeout.")
