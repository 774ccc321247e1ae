"""What names hold on the clients of a cluster, put together from what each of them tells."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from .clients import ClientGroup
from .errors import ClusterStateError, SpecError
from .state import name_clients
from .variables import VariableState


async def describe(
    group: ClientGroup, clients: Sequence[int], names: Sequence[str] | None, *, values: bool
) -> dict[int, list[VariableState]]:
    """Ask all `clients` that live; see :meth:`Cluster.describe`."""
    alive = [client for client in clients if client not in group.exits]
    if not alive:
        raise ClusterStateError(f"all clients of {group.name} are dead; %dtensor_restart brings new ones.")
    found = await asyncio.gather(*(group.describe(client, names, values=values) for client in alive))
    answers = {client: answer for client, answer in zip(alive, found, strict=True) if answer is not None}
    silent = [client for client in alive if client not in answers]
    if silent:
        raise ClusterStateError(
            f"{name_clients(silent)} of {group.name} did not answer; %dtensor_stacks says where each client stands."
        )
    for client, answer in answers.items():
        if answer["status"] != "ok":
            raise ClusterStateError(f"client {client} of {group.name} cannot describe this: {answer['text']}")
    return read_descriptions(group.name, names, answers)


def read_descriptions(
    cluster: str, names: Sequence[str] | None, answers: Mapping[int, Mapping[str, Any]]
) -> dict[int, list[VariableState]]:
    """Return what clients described.

    Raises
    ------
    SpecError
        For a name that none of them has.
    """
    for name in names or ():
        if all(name in answer["missing"] for answer in answers.values()):
            raise SpecError(f"no client of {cluster} has {name!r}; %dtensor_variables lists what there is.")
    return {
        client: [VariableState.from_json(one) for one in answer["variables"]] for client, answer in answers.items()
    }
