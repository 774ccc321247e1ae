"""Values to the clients and back: the driver's side. What clients do is in `client.values`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import pickling
from .clients import ClientGroup
from .errors import ClientDiedError, TransferError
from .execution.exchange import Exchange
from .gathering import KIND, Gathering, Pulled, reason_of
from .loop import driver
from .shards import ShardWriter
from .shared_memory import transfer_folder
from .state import name_clients

# --- push


def push(group: ClientGroup, clients: Sequence[int], named: Mapping[str, Any]) -> None:
    """Bind values on clients: on all of them, or, if one cannot take them, on none.

    Raises
    ------
    TransferError
        For a value that cannot be pickled, before anything is sent, or made again.
    ClientDiedError
        If a client is dead, or dies meanwhile.
    """
    doing = "while values were pushed"
    for client in clients:
        if client in group.exits:
            raise ClientDiedError(group.name, client, group.exits[client], where="before values were pushed")
    names = ", ".join(named)
    try:
        parcels = pickling.pickled(_without_dtensors(named))
    except pickling.UnpicklableError as error:
        raise TransferError(error.name, f"{error.name} cannot be pushed: {error.reason}.") from error
    exchange = Exchange(group, doing)
    with transfer_folder(group.agent.folder, sum(parcel.nbytes for parcel in parcels.values()), names) as folder:
        try:
            for name, parcel in parcels.items():
                _write(folder, name, parcel)
        except OSError as error:
            # Somebody else took the room meanwhile.
            raise TransferError(names, f"{names} cannot be written down for the clients: {error}.") from error
        del parcels
        content = {"step": "take", "folder": str(folder), "names": list(named)}
        try:
            _settled(names, exchange.ask(KIND, dict.fromkeys(clients, content)))
        except BaseException:
            drop(group, clients)
            raise
    _settled(names, exchange.ask(KIND, {client: {"step": "bind"} for client in clients}))


def _write(folder: Path, name: str, parcel: pickling.Pickled) -> None:
    """Write a value into files of its own, so that dropping it on the clients frees its memory."""
    writer = ShardWriter(folder, name)
    try:
        writer.stream(parcel.stream)
        for buffer in parcel.buffers:
            writer.buffer(buffer)
    finally:
        writer.close()


def _without_dtensors(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, if none of them is a DTensor of this process, which no client could take as it is."""
    if "tensorflow" in sys.modules:
        from .client.parts import reader_of

        for name, value in named.items():
            if reader_of(value) is not None:
                raise TransferError(
                    name, f"{name} is a DTensor of this notebook's own mesh; push its global array, or its parts."
                )
    return dict(named)


def _settled(names: str, answers: Mapping[int, Mapping[str, Any]]) -> None:
    refused: dict[str, list[int]] = {}
    for client, answer in answers.items():
        if answer["status"] != "ok":
            refused.setdefault(reason_of(answer), []).append(client)
    if refused:
        parts = [f"{name_clients(clients)} cannot take {reason}" for reason, clients in refused.items()]
        raise TransferError(names, f"{'; '.join(parts)}. Nothing was bound.")


def drop(group: ClientGroup, clients: Sequence[int]) -> None:
    """Have clients let go of what a push or a pull left; nobody waits for that."""

    async def tell() -> None:
        for client in clients:
            group.tell(client, KIND, {"step": "drop"})

    driver().finish(tell())


# --- pull


def pull(group: ClientGroup, clients: Sequence[int], names: Sequence[str]) -> dict[str, Pulled]:
    """Bring what names hold on clients.

    Raises
    ------
    TransferError
        For a name that a client does not have, or a value that cannot travel.
    ClientDiedError
        If a client dies meanwhile, or none of `clients` lives.
    """
    living = [client for client in clients if client not in group.exits]
    if not living:
        first = clients[0]
        raise ClientDiedError(group.name, first, group.exits[first], where="before values were pulled")
    exchange = Exchange(group, "while values were pulled")
    asked = list(living)
    try:
        offers = _offers(exchange, living, names)
        _check(offers, names)
        tensors = [name for name in names if any(offers[client][name]["tensors"] for client in living)]
        # The shards of a DTensor are wherever they are.
        others = [
            client for client in range(group.plan.clients) if client not in clients and client not in group.exits
        ]
        asked += others if tensors else []
        beside = _offers(exchange, others, tensors) if tensors and others else {}
        found = {}
        for name in names:
            held = {client: offers[client][name] for client in living}
            spare = {client: offer[name] for client, offer in beside.items() if "tensors" in offer.get(name, {})}
            pulled = Gathering(group, exchange, name, held, spare).value()
            pulled.dead = {client: group.exits[client] for client in clients if client in group.exits}
            found[name] = pulled
        return found
    finally:
        drop(group, asked)


def _offers(exchange: Exchange, clients: Sequence[int], names: Sequence[str]) -> dict[int, dict[str, Any]]:
    answers = exchange.ask(KIND, {client: {"step": "offer", "names": list(names)} for client in clients})
    for client, answer in answers.items():
        if answer["status"] != "ok":
            raise TransferError(", ".join(names), f"client {client} gave nothing: {reason_of(answer)}.")
    return {client: answer["names"] for client, answer in answers.items()}


def _check(offers: Mapping[int, Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raise for names that a client does not have, and for values that cannot travel."""
    missing: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        without = tuple(client for client, offer in offers.items() if "missing" in offer[name])
        if without:
            missing.setdefault(without, []).append(name)
    if missing:
        parts = [f"no {', '.join(which)} on {name_clients(without)}" for without, which in missing.items()]
        raise TransferError(
            ", ".join(name for which in missing.values() for name in which), f"there is {'; '.join(parts)}."
        )
    for name in names:
        refused: dict[str, list[int]] = {}
        for client, offer in offers.items():
            if "error" in offer[name]:
                refused.setdefault(offer[name]["error"], []).append(client)
        if refused:
            reasons = "; ".join(f"{name_clients(which)}: {reason.rstrip('.')}" for reason, which in refused.items())
            raise TransferError(name, f"{name} cannot be pulled from {reasons}.")
