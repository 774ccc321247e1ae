"""Put together what the clients hold of a name: one value, one global array, or a value of each."""

from __future__ import annotations

import base64
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import pickling
from .client.values import global_array
from .clients import ClientGroup
from .errors import TransferError
from .execution.exchange import Exchange
from .per_client import PerClient, alike
from .shards import MissingPartError, ShardReader, StoredTensor
from .shared_memory import transfer_folder
from .state import name_clients

#: The request that `client.values` serves.
KIND = "dtensor_values_request"

#: What a client is to write: its value (see `client.values`), and which shards.
Choice = tuple[str | None, list[tuple[str, int, str | None]]]


@dataclass
class Pulled:
    """What a pull brought of one name.

    Attributes
    ----------
    value : object
        The one value, or a `PerClient`.
    clients : tuple of int
        Those that it came from.
    layout : StoredTensor or None
        Of a DTensor: what it was on the clients.
    dead : dict of int to str
        Clients that could not be asked, and how they ended.
    """

    value: Any
    clients: tuple[int, ...]
    layout: StoredTensor | None = None
    dead: dict[int, str] = field(default_factory=dict)


def reason_of(answer: Mapping[str, Any]) -> str:
    """Return a client's reason for not doing something."""
    return str(answer["text"]).removeprefix("ValueError: ").rstrip(".")


class Gathering:
    """The pull of one name.

    Parameters
    ----------
    held : mapping of int to dict
        What each client that was asked offers.
    spare : mapping of int to dict
        The same of other clients, for their shards alone.
    """

    def __init__(
        self, group: ClientGroup, exchange: Exchange, name: str, held: Mapping[int, Any], spare: Mapping[int, Any]
    ) -> None:
        self._group = group
        self._exchange = exchange
        self._name = name
        self._held = held
        self._all = {**held, **spare}
        self._tensors = {
            client: {key: StoredTensor.from_json(stored) for key, stored in offer["tensors"].items()}
            for client, offer in self._all.items()
        }
        #: The files that hold each client's value.
        self._source: dict[int, str] = {}
        #: The files of each round, in order, and each client's own of the second.
        self._files: list[str] = []
        self._own: dict[int, str] = {}
        #: Tensors of which a client has replicas of its own.
        self._differs: dict[int, set[str]] = {}
        self._reader: ShardReader | None = None

    def value(self) -> Pulled:
        """Have clients write what is needed, and put it together."""
        if all(offer["stream"] is not None and not offer["tensors"] for offer in self._held.values()):
            return self._assembled()
        self._check_layouts()
        first, second = self._plan()
        size = sum(self._size(client, *chosen) for client, chosen in first.items())
        with transfer_folder(self._group.agent.folder, size, self._name) as folder:
            self._write(folder, 1, first)
            self._write(folder, 2, second)
            self._reader = ShardReader(folder, self._files)
            return self._assembled()

    def _check_layouts(self) -> None:
        """Raise, where clients that should hold parts of one tensor hold parts of different ones."""
        kinds: dict[str, dict[str, list[int]]] = {}
        for client, tensors in self._tensors.items():
            for key, stored in tensors.items():
                dims = ", ".join(f"{name}={count}" for name, count in stored.mesh)
                text = f"{stored.shape} {stored.dtype} [{', '.join(stored.specs)}] on {dims}"
                kinds.setdefault(key, {}).setdefault(text, []).append(client)
        for found in kinds.values():
            if len(found) > 1:
                parts = "; ".join(f"{name_clients(clients)}: {text}" for text, clients in found.items())
                raise TransferError(self._name, f"{self._name} is not one DTensor: {parts}.")

    def _plan(self) -> tuple[dict[int, Choice], dict[int, Choice]]:
        """Choose who writes: the first client that has a value or a shard; all others compare theirs with it."""
        first: dict[int, Choice] = {}
        second: dict[int, Choice] = {}
        leads: dict[Any, int] = {}
        for client, offer in self._held.items():
            kind = (offer["digest"], tuple(offer["buffers"]))
            lead = leads.setdefault(kind, client)
            self._source[client] = _file(lead, 1)
            if offer["stream"] is None and lead == client:
                first[client] = ("", [])
            elif offer["buffers"]:
                second[client] = (_file(lead, 1), [])
        holders: dict[Any, int] = {}
        for client, tensors in self._tensors.items():
            for key, stored in tensors.items():
                for number, shard in enumerate(stored.shards):
                    holder = holders.setdefault((key, shard.ranges), client)
                    chosen = first if holder == client else second
                    other = None if holder == client else _file(holder, 1)
                    chosen.setdefault(client, (None, []))[1].append((key, number, other))
        return first, second

    def _size(self, client: int, value: str | None, parts: Sequence[Any]) -> int:
        size = self._all[client]["size"] if value is not None else 0
        for key, number, _ in parts:
            size += self._tensors[client][key].shard_bytes(number)
        return int(size)

    def _write(self, folder: Path, turn: int, chosen: Mapping[int, Choice]) -> None:
        if not chosen:
            return
        contents = {
            client: {
                "step": "write",
                "folder": str(folder),
                "writer": _file(client, turn),
                "name": self._name,
                "value": value,
                "parts": parts,
            }
            for client, (value, parts) in chosen.items()
        }
        for client, answer in self._exchange.ask(KIND, contents).items():
            if answer["status"] != "ok":
                raise TransferError(
                    self._name, f"{self._name} did not come from client {client}: {reason_of(answer)}."
                )
            if answer["value"]:
                self._source[client] = _file(client, turn)
            if answer["value"] or answer["parts"]:
                self._files.append(_file(client, turn))
            if turn == 2 and answer["parts"]:
                self._own[client] = _file(client, turn)
                self._differs[client] = {key for key, _ in answer["parts"]}

    def _assembled(self) -> Pulled:
        """Make the values: one object for all clients whose values are the same."""
        made: dict[Any, Any] = {}
        values: dict[int, Any] = {}
        for client, offer in self._held.items():
            own = frozenset(self._differs.get(client, ()))
            key = (offer["digest"], self._source.get(client), client if own else None)
            if key not in made:
                made[key] = self._load(client)
            values[client] = made[key]
        distinct = list({id(value): value for value in values.values()}.values())
        for client, value in values.items():
            values[client] = next(one for one in distinct if one is value or _alike(one, value))
        tensors = self._tensors[min(self._held)]
        layout = tensors[f"{self._name}/0"] if self._is_dtensor() and tensors else None
        first = values[min(values)]
        same = all(value is first for value in values.values())
        return Pulled(first if same else PerClient(values), tuple(self._all if layout else self._held), layout)

    def _is_dtensor(self) -> bool:
        """Whether the name holds a DTensor itself, and no container of them."""
        return all(offer["single"] for offer in self._held.values())

    def _load(self, client: int) -> Any:
        offer = self._held[client]
        if offer["stream"] is not None:
            stream, buffers = base64.b64decode(offer["stream"]), []
        else:
            assert self._reader is not None
            source = self._source[client]
            stream, buffers = self._reader.stream(source), self._reader.buffers(source)

        def tensor(key: str) -> Any:
            return self._tensor(client, key)

        start = _may_start_tensorflow(self._group.plan.device_type)
        try:
            return _Unpickler(stream, buffers, tensor, tensorflow=start).load()
        except TransferError:
            raise
        except Exception as error:
            raise TransferError(
                self._name, f"{self._name} cannot be made in this notebook: {pickling.reason(error)}."
            ) from error

    def _tensor(self, client: int, key: str) -> Any:
        """Put a DTensor's global array together, from the replicas that `client` has where it has its own."""
        assert self._reader is not None
        stored = self._tensors[client][key]
        own = self._own.get(client)
        # What the first round wrote is whole; the second's is what differs from it.
        files = [*([own] if own else []), *(file for file in self._files if file not in self._own.values())]
        try:
            return self._reader.part(stored, key, tuple((0, size) for size in stored.shape), files)
        except MissingPartError as error:
            ends = self._group.exits
            why = "; ".join(f"client {one} {text.partition(chr(10))[0]}" for one, text in ends.items())
            raise TransferError(
                self._name, f"{self._name} cannot be pulled: {error}{f' ({why})' if why else ''}."
            ) from error


def _alike(one: Any, two: Any) -> bool:
    try:
        return alike(one, two)
    except (RecursionError, ValueError, TypeError):
        # It holds itself, or compares in a way of its own: not plain data.
        return False


def _file(client: int, turn: int) -> str:
    return f"c{client}-{turn}"


def _may_start_tensorflow(device_type: str) -> bool:
    """Whether tensors may be made here: where that would start TensorFlow on the clients' accelerators, no."""
    if device_type == "CPU":
        return True
    context = sys.modules.get("tensorflow.python.eager.context")
    live = context.context_safe() if context is not None else None
    return live is not None and bool(live._initialized)  # noqa: SLF001 - TensorFlow has no public question


class _Unpickler(pickle.Unpickler):
    """Reads what a client pickled.

    Parameters
    ----------
    tensor : callable
        Returns the global array of the DTensor with this key.
    tensorflow : bool
        Whether tensors and variables are made; arrays take their places otherwise.
    """

    def __init__(
        self, stream: bytes, buffers: Sequence[memoryview], tensor: Callable[[str], Any], *, tensorflow: bool
    ) -> None:
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._places: dict[tuple[str, str], Callable[..., Any]] = {
            (global_array.__module__, global_array.__name__): tensor
        }
        if not tensorflow:
            for maker in (pickling.make_tensor, pickling.make_variable):
                self._places[maker.__module__, maker.__name__] = lambda value, _: value

    def find_class(self, module: str, name: str) -> Any:
        """Return what the pickle names."""
        return self._places.get((module, name)) or super().find_class(module, name)
