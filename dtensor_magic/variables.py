"""What names hold on the clients: shapes, layouts and shards, as the explorer and the layout picture show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .state import ClusterState, MeshState, name_clients

#: Begin and end in one axis of a tensor.
Range = tuple[int, int]

#: What a sharding spec says of an axis that every device holds whole.
UNSHARDED = "unsharded"

#: What is said of a name whose values are each client's own, which they may well be.
OWN_VALUE = "a value per client"

Kind = Literal["dtensor", "tensor", "array", "mesh", "layout", "value", "group"]


@dataclass
class HeatState:
    """The values of a part of a tensor, coarse enough to draw.

    Attributes
    ----------
    ranges : list of (int, int)
        The part, by axis of the tensor.
    grid : list of list of float or None
        Means over blocks, rows by columns: the last two axes, the others averaged. None where a block has a value
        that is no number.
    low, high : float or None
        The least and the greatest finite value in the part.
    """

    ranges: list[Range]
    grid: list[list[float | None]]
    low: float | None
    high: float | None


@dataclass
class VariableState:
    """What a name holds on one client.

    Attributes
    ----------
    name : str
        In a group, the way from the group to it: ``.kernel``, ``[0]``, ``['w']``.
    kind : str
        ``dtensor`` (DVariables too), ``tensor`` and ``array`` (this client's own), ``mesh``, ``layout``,
        ``group`` (a list, dict, tf.Module or model, see `parts`), or ``value``.
    type : str
        The Python class.
    shape : list of int or None
        Of a DTensor the global shape.
    dtype : str
    specs : list of str or None
        A DTensor's sharding specs: a mesh dimension or ``unsharded`` per axis.
    mesh : MeshState or None
        Of a DTensor or layout; of a mesh itself.
    nbytes : int or None
        Bytes of the whole value, on one copy.
    text : str
        What a plain value is, in short.
    digest : str
        Equal where values are alike; empty where they were not compared.
    parts : list of VariableState
        Of a group: the tensors and variables in it.
    heat : list of HeatState
        With values: those that this client holds.
    client : int or None
        Whose it is, where the clients differ in it.
    """

    name: str
    kind: Kind
    type: str
    shape: list[int] | None = None
    dtype: str = ""
    specs: list[str] | None = None
    mesh: MeshState | None = None
    nbytes: int | None = None
    text: str = ""
    digest: str = ""
    parts: list[VariableState] = field(default_factory=list)
    heat: list[HeatState] = field(default_factory=list)
    client: int | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VariableState:
        """Make one of what `dataclasses.asdict` made of one."""
        values = dict(data)
        values["mesh"] = MeshState(**values["mesh"]) if values.get("mesh") else None
        values["parts"] = [cls.from_json(part) for part in values.get("parts", ())]
        values["heat"] = [
            HeatState(**{**heat, "ranges": [(first, end) for first, end in heat["ranges"]]})
            for heat in values.get("heat", ())
        ]
        return cls(**values)

    def leaves(self) -> Iterator[VariableState]:
        """Yield the tensors in it: itself, or those of a group, with their names from the top."""
        if self.kind != "group":
            yield self
        for part in self.parts:
            for leaf in part.leaves():
                values = {**leaf.__dict__, "name": self.name + leaf.name}
                yield VariableState(**values)


@dataclass(frozen=True)
class Shard:
    """What one device holds of a DTensor.

    Attributes
    ----------
    device : int
        Its global id.
    coordinates : dict of str to int
        Its place in the mesh.
    ranges : tuple of (int, int)
        Begin and end by axis of the tensor.
    nbytes : int
    """

    device: int
    coordinates: Mapping[str, int]
    ranges: tuple[Range, ...]
    nbytes: int


def part_of(
    shape: Sequence[int], specs: Sequence[str], dims: Mapping[str, int], place: Mapping[str, int]
) -> tuple[Range, ...]:
    """Return which part of a tensor the device at `place` of the mesh holds.

    Parameters
    ----------
    shape : sequence of int
        The global shape.
    specs : sequence of str
        A mesh dimension or ``unsharded`` per axis, as in ``dtensor.Layout``.
    dims : mapping of str to int
        The mesh's dimensions.
    place : mapping of str to int
        The device's coordinates.
    """
    ranges = []
    for size, spec in zip(shape, specs, strict=True):
        if spec in dims:
            part = size // dims[spec]
            ranges.append((place[spec] * part, (place[spec] + 1) * part))
        else:
            ranges.append((0, size))
    return tuple(ranges)


def shards(variable: VariableState) -> list[Shard]:
    """Return what each device of the mesh holds of a DTensor, in the mesh's order."""
    assert variable.mesh is not None
    assert variable.shape is not None
    assert variable.specs is not None
    count = math.prod(variable.shape)
    item = (variable.nbytes or 0) // count if count else 0
    found = []
    for device, place in variable.mesh.places():
        ranges = part_of(variable.shape, variable.specs, variable.mesh.dims, place)
        size = math.prod(end - first for first, end in ranges)
        found.append(Shard(device, place, ranges, size * item))
    return found


def same_parts(variable: VariableState) -> dict[tuple[Range, ...], list[int]]:
    """Return the devices that hold each distinct part, in the mesh's order: several where it is replicated."""
    found: dict[tuple[Range, ...], list[int]] = {}
    for shard in shards(variable):
        found.setdefault(shard.ranges, []).append(shard.device)
    return found


def replicated_over(variable: VariableState) -> list[str]:
    """Return the mesh dimensions along which every device holds the same part."""
    assert variable.mesh is not None
    return [name for name in variable.mesh.dims if name not in (variable.specs or ())]


def device_bytes(variables: Iterable[VariableState]) -> dict[int, int]:
    """Return the bytes that DTensors take on each device, together."""
    total: dict[int, int] = {}
    for variable in variables:
        if variable.kind == "dtensor":
            for shard in shards(variable):
                total[shard.device] = total.get(shard.device, 0) + shard.nbytes
    return total


def imbalance(sizes: Iterable[int]) -> float:
    """Return how much more than the mean the fullest device holds: 0 for even, 1 for twice the mean."""
    values = list(sizes)
    mean = sum(values) / len(values) if values else 0
    return max(values) / mean - 1 if mean else 0.0


@dataclass
class NameState:
    """A name over all clients.

    Attributes
    ----------
    name : str
    by_client : dict of int to VariableState
        Clients that do not have it are missing.
    clients : tuple of int
        All that were asked.
    """

    name: str
    by_client: dict[int, VariableState]
    clients: tuple[int, ...]

    @property
    def first(self) -> VariableState:
        """What it is on the first client that has it."""
        return self.by_client[min(self.by_client)]

    @property
    def difference(self) -> str:
        """Say in what the clients differ; empty where they agree.

        Under SPMD every client should hold the same DTensors, in the same layouts; values that are a client's
        own (its id, its part of the data) differ rightly.
        """
        missing = [client for client in self.clients if client not in self.by_client]
        parts = [f"not on {name_clients(missing)}"] if missing else []
        what, groups = self.apart
        if what == "value":
            parts.append(OWN_VALUE)
        elif what:
            told = [f"{name_clients(group)} {text}" for text, group in _largest_last(groups)]
            parts.append(f"{what} differs: {'; '.join(told)}")
        return "; ".join(parts)

    @property
    def apart(self) -> tuple[str, dict[str, list[int]]]:
        """The first aspect in which the clients that have it differ, and who has what; empty where they agree."""
        for what, of in _ASPECTS:
            groups: dict[str, list[int]] = {}
            for client, variable in self.by_client.items():
                groups.setdefault(of(variable), []).append(client)
            if len(groups) > 1:
                return what, groups
        return "", {}


def _largest_last(groups: Mapping[str, list[int]]) -> list[tuple[str, list[int]]]:
    return sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))


def layout_text(variable: VariableState) -> str:
    """Write a layout: ``[batch, unsharded] on batch=4, model=2``; empty without one."""
    if variable.specs is None or variable.mesh is None:
        return ""
    dims = ", ".join(f"{name}={size}" for name, size in variable.mesh.dims.items())
    return f"[{', '.join(variable.specs)}] on {dims}"


def signature(variable: VariableState) -> str:
    """Write shape, dtype and layout in short: ``float32 (8, 4) [batch, unsharded] on batch=4``."""
    shape = "" if variable.shape is None else f"({', '.join(map(str, variable.shape))})"
    words = (variable.dtype, shape, layout_text(variable))
    return " ".join(word for word in words if word)


_ASPECTS = (
    ("type", lambda variable: variable.type),
    ("shape", lambda variable: str(variable.shape)),
    ("dtype", lambda variable: variable.dtype),
    ("layout", layout_text),
    ("content", lambda variable: ", ".join(f"{part.name} {signature(part)}" for part in variable.parts)),
    ("value", lambda variable: variable.digest),
)


def over_clients(described: Mapping[int, Sequence[VariableState]]) -> list[NameState]:
    """Put together what the clients say of their names: in the order of the first client that has each."""
    clients = tuple(sorted(described))
    names: dict[str, NameState] = {}
    for client in clients:
        for variable in described[client]:
            names.setdefault(variable.name, NameState(variable.name, {}, clients)).by_client[client] = variable
    return list(names.values())


def client_of(state: ClusterState) -> dict[int, int]:
    """Return which client each device belongs to, by the device's global id."""
    return {device.global_id: client.id for client in state.clients for device in client.devices}


def gather(described: Mapping[int, Sequence[VariableState]]) -> list[VariableState]:
    """Return each name once, with the values that all clients have of it.

    A DTensor that the clients hold in different layouts, and a value that is each client's own, appears once per
    client.
    """
    found: list[VariableState] = []
    for name in over_clients(described):
        alike = not name.apart[0]
        if name.first.kind in ("dtensor", "group") and alike:
            found.append(_merge(list(name.by_client.values())))
        elif alike:
            found.append(name.first)
        else:
            found += [replace(one, client=client) for client, one in name.by_client.items()]
    return found


def _merge(variables: Sequence[VariableState]) -> VariableState:
    first = variables[0]
    heat = {tuple(one.ranges): one for variable in variables for one in variable.heat}
    parts = [_merge(same) for same in zip(*(variable.parts for variable in variables), strict=True)]
    return replace(first, heat=list(heat.values()), parts=parts)
