"""What both forms of the layout picture say in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from ...state import ClusterState, name_clients
from ...variables import (
    VariableState,
    client_of,
    device_bytes,
    imbalance,
    layout_text,
    replicated_over,
    same_parts,
)
from ..places import count_of, device_ids, name_devices
from ..text import size
from .pieces import cut, heat_scale

#: A table of more tensors than these says how many more there are.
_MOST_ROWS = 100

#: How the ends of the drawing's scale of values look.
SHADES = ("yellow", "dark violet")

COLUMNS = ("name", "shape", "dtype", "layout", "bytes", "a device")


def title(variable: VariableState) -> str:
    """Name a variable, its type, dtype and shape."""
    if variable.kind == "group":
        count = sum(1 for _ in variable.leaves())
        return f"{variable.name}: {variable.type}, {count_of(count, 'tensor')}"
    shape = "" if variable.shape is None else f" ({', '.join(map(str, variable.shape))})"
    whose = "" if variable.client is None else f" on client {variable.client}"
    return f"{variable.name}{whose}: {variable.type} {variable.dtype}{shape}".rstrip()


def about(variable: VariableState, state: ClusterState | None, shades: tuple[str, str]) -> list[str]:
    """Say how a DTensor is laid out: sharding, copies, bytes, balance and values, whose shades are named."""
    holders = same_parts(variable)
    lines = [f"layout {layout_text(variable)}", *_axes(variable), *_copies(variable, holders)]
    per_device = device_bytes([variable])
    largest, total = max(per_device.values(), default=0), sum(per_device.values())
    line = f"{size(largest)} on each of {len(per_device)} devices" if len(per_device) > 1 else size(largest)
    if total != largest:
        line += f", {size(total)} in all"
    if total != (variable.nbytes or 0):
        line += f" for a tensor of {size(variable.nbytes)}"
    lines.append(line)
    lines += _left_out([variable], state)
    lines += _values(variable, shades)
    return lines


def _axes(variable: VariableState) -> list[str]:
    assert variable.mesh is not None
    assert variable.specs is not None
    assert variable.shape is not None
    if not variable.shape:
        return ["a scalar: one element, no axes"]
    dims = variable.mesh.dims
    parts = [f"axis {axis} over {spec} in {dims[spec]}" for axis, spec in enumerate(variable.specs) if spec in dims]
    lines = [f"sharded: {', '.join(parts)}"] if parts else []
    drawn = cut(variable)
    hidden = [
        f"axis {axis} ({length})"
        for axis, length in enumerate(variable.shape)
        if axis not in (drawn.down, drawn.over) and variable.specs[axis] not in dims
    ]
    if hidden:
        lines.append(f"not drawn, whole in every part: {', '.join(hidden)}")
    if not math.prod(variable.shape):
        lines.append("no elements")
    return lines


def _copies(variable: VariableState, holders: dict[tuple[tuple[int, int], ...], list[int]]) -> list[str]:
    assert variable.mesh is not None
    repeated = [name for name in replicated_over(variable) if variable.mesh.dims[name] > 1]
    count = max(map(len, holders.values()))
    if not math.prod(variable.shape or ()):
        return []
    if count == 1:
        return ["no copies: every device holds a part of its own" if len(holders) > 1 else "on one device, whole"]
    over = " and ".join(repeated)
    if len(holders) == 1:
        return [f"replicated over {over}: each of {count} devices holds all of it"]
    return [f"replicated over {over}: each part is on {count} devices"]


def _left_out(variables: Sequence[VariableState], state: ClusterState | None) -> list[str]:
    """Say how unevenly the cluster's devices are filled; nothing where they are even."""
    held = device_bytes(variables)
    every = dict.fromkeys(client_of(state), 0) if state else {}
    every.update(held)
    more = imbalance(every.values())
    if more < 0.005:
        return []
    largest = max(every.values())
    fullest = [device for device, count in every.items() if count == largest]
    verb = "holds" if len(fullest) == 1 else "hold"
    text = f"uneven: {name_devices(fullest)} {verb} {1 + more:.3g} times the mean"
    empty = [device for device, count in every.items() if not count]
    return [f"{text}; nothing on {name_devices(empty)}" if empty else text]


def _span(variable: VariableState) -> str:
    """Say from where to where the values of a client's own array go."""
    (heat,) = variable.heat or (None,)
    return "" if heat is None or heat.low is None else f", values from {heat.low:.4g} to {heat.high:.4g}"


def _values(variable: VariableState, shades: tuple[str, str]) -> list[str]:
    if not variable.heat:
        return []
    lows = [heat.low for heat in variable.heat if heat.low is not None]
    highs = [heat.high for heat in variable.heat if heat.high is not None]
    if not lows or not highs:
        return ["values: none is finite"]
    low, high = heat_scale(variable)
    shown = f"shades from {low:.4g} ({shades[0]}) to {high:.4g} ({shades[1]}), means over blocks"
    odd = any(value is None for heat in variable.heat for row in heat.grid for value in row)
    missing = "; ! where a value is not finite" if odd else ""
    return [f"values from {min(lows):.4g} to {max(highs):.4g}; {shown}{missing}"]


def plain(variable: VariableState) -> str:
    """Say in one line what a variable is that has no layout."""
    if variable.kind in ("tensor", "array"):
        whose = "every client has a copy of its own" if variable.client is None else "each client has another"
        return f"not a DTensor: {whose}, {size(variable.nbytes)}{_span(variable)}"
    if variable.kind == "layout":
        return f"a layout: {layout_text(variable)}"
    if variable.kind == "mesh" and variable.mesh is not None:
        dims = ", ".join(f"{name}={count}" for name, count in variable.mesh.dims.items())
        return f"a mesh: {dims} of {count_of(variable.mesh.size, f'{variable.mesh.device_type} device')}"
    return f"no tensor: {variable.text or variable.type}"


def has_layout(variable: VariableState) -> bool:
    """Whether there is something to draw."""
    known = variable.mesh is not None and variable.specs is not None and variable.shape is not None
    return variable.kind == "dtensor" and known


def rows(group: VariableState) -> list[tuple[str, ...]]:
    """Return the rows of a group's table, of :data:`COLUMNS`."""
    found: list[tuple[str, ...]] = []
    for leaf in islice(group.leaves(), _MOST_ROWS):
        shape = "" if leaf.shape is None else f"({', '.join(map(str, leaf.shape))})"
        held = max(device_bytes([leaf]).values(), default=0) if has_layout(leaf) else None
        layout = f"[{', '.join(leaf.specs)}]" if leaf.specs is not None else f"{leaf.kind}, each client's own"
        name = leaf.name.removeprefix(group.name) or leaf.name
        found.append((name, shape, leaf.dtype, layout, size(leaf.nbytes), size(held)))
    return found


def group_notes(group: VariableState, state: ClusterState | None = None) -> list[str]:
    """Say what a group's tensors take together, and how evenly the devices are filled."""
    leaves = list(group.leaves())
    lines = []
    if len(leaves) > _MOST_ROWS:
        rest = sum(leaf.nbytes or 0 for leaf in leaves[_MOST_ROWS:])
        lines.append(f"and {len(leaves) - _MOST_ROWS} more tensors, {size(rest)}")
    meshes = {
        mesh: None for leaf in leaves if has_layout(leaf) and (mesh := layout_text(leaf).rpartition(" on ")[2])
    }
    if meshes:
        lines.append(f"on {'; '.join(meshes)}")
    lines.append(f"together {size(sum(leaf.nbytes or 0 for leaf in leaves))}, one copy of each")
    drawn = [leaf for leaf in leaves if has_layout(leaf)]
    held = device_bytes(drawn)
    if held:
        low, high = size(min(held.values())), size(max(held.values()))
        lines.append(f"{low if low == high else f'{low} to {high}'} a device, {size(sum(held.values()))} on all")
        lines += _left_out(drawn, state)
    return lines


def holders_text(devices: Iterable[int], clients: dict[int, int]) -> str:
    """Name the devices that hold a part, and their clients where known."""
    ids = list(devices)
    owners = {clients[device] for device in ids if device in clients}
    return name_devices(ids) + (f" ({name_clients(owners)})" if owners else "")


def cell(devices: Sequence[int], clients: Mapping[int, int]) -> list[str]:
    """Say in a part's cell which devices hold it, and whose these are."""
    lines = [f"{len(devices)} devices: {device_ids(devices)}" if len(devices) > 1 else f"device {devices[0]}"]
    owners = {clients[device] for device in devices if device in clients}
    return lines + ([f"client{'s' * (len(owners) > 1)} {device_ids(owners)}"] if owners else [])


def in_cells(holders: Iterable[Sequence[int]]) -> str:
    """Say what stands in the cells where there is no room for words."""
    if all(len(devices) == 1 for devices in holders):
        return "in the cells: each part's device"
    return "in the cells: the first device that holds the part, + how many more do"


def description(variable: VariableState, state: ClusterState | None) -> str:
    """Say in words what the picture of a variable shows."""
    if has_layout(variable):
        return ". ".join(about(variable, state, SHADES))
    if variable.kind == "group":
        return ". ".join(group_notes(variable, state))
    return plain(variable)
