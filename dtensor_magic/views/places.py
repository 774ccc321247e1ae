"""Where a mesh's devices are, whose they are, and how their clients stand: what both forms of its picture show."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..state import ClientState, ClusterState, DeviceState, MeshState, Phase, client_ranges, name_clients
from .text import size

#: The sign of :data:`dtensor_magic.views.svg.ICONS` for each phase.
PHASE_ICONS = {
    Phase.STARTING: "starting",
    Phase.INITIALISING: "starting",
    Phase.READY: "done",
    Phase.BUSY: "running",
    Phase.WAITING: "waiting",
    Phase.FAILED: "failed",
    Phase.DEAD: "failed",
}
ENDED = (Phase.FAILED, Phase.DEAD)

#: More clients than these are told of together.
_MOST_CLIENTS = 16


@dataclass(frozen=True)
class Owned:
    """A device of the mesh with its client; None where no client tells of it (yet)."""

    id: int
    kind: str
    client: ClientState | None = None
    device: DeviceState | None = None

    @property
    def owner(self) -> str:
        """Name its client."""
        return f"client {self.client.id}" if self.client else "no client"

    @property
    def memory(self) -> str:
        """Say how much of its memory is in use; empty where the device does not tell."""
        if self.device is None or self.device.memory_used is None:
            return ""
        used = size(self.device.memory_used)
        if not self.device.memory_limit:
            return used
        limit = size(self.device.memory_limit)
        number, unit = used.split()
        return f"{number if limit.endswith(unit) else used} / {limit}"

    @property
    def fullness(self) -> float | None:
        """The share of its memory that is in use, 0 to 1."""
        if self.device is None or self.device.memory_used is None or not self.device.memory_limit:
            return None
        return min(1.0, max(0.0, self.device.memory_used / self.device.memory_limit))


@dataclass(frozen=True)
class Grid:
    """The devices of a mesh's last two dimensions, for one place in the others.

    Attributes
    ----------
    title : str
        The place: ``stage=1``; empty where there are no other dimensions.
    down, over : str
        The dimensions that run down and across; empty where there is none.
    devices : list of list of int
        Global ids, by row and column.
    """

    title: str
    down: str
    over: str
    devices: list[list[int]]


def grids(mesh: MeshState) -> list[Grid]:
    """Return every device of a mesh in its place."""
    names, sizes = list(mesh.dims), list(mesh.dims.values())
    rows, columns = [1, 1, *sizes][-2:]
    devices = iter(device for device, _ in mesh.places())
    found = []
    for step in itertools.product(*(range(count) for count in sizes[:-2])):
        title = ", ".join(f"{name}={index}" for name, index in zip(names, step, strict=False))
        block = [[next(devices) for _ in range(columns)] for _ in range(rows)]
        down, over = ["", "", *names][-2:]
        found.append(Grid(title, down, over, block))
    # A mesh like 512 x 1 would take one device a row.
    tall = rows > 16 and rows > 4 * columns
    return [_turned(grid) for grid in found] if tall else found


def _turned(grid: Grid) -> Grid:
    return Grid(grid.title, grid.over, grid.down, [list(column) for column in zip(*grid.devices, strict=True)])


def owners(state: ClusterState, mesh: MeshState) -> dict[int, Owned]:
    """Return the devices of a mesh by global id, in the mesh's order."""
    known = {device.global_id: (client, device) for client in state.clients for device in client.devices}
    found = {}
    for number, _ in mesh.places():
        client, device = known.get(number, (None, None))
        found[number] = Owned(number, device.type if device else mesh.device_type, client, device)
    return found


def headline(mesh: MeshState, owned: Mapping[int, Owned]) -> str:
    """Say what the mesh is: ``mesh: 8 CPU devices, batch=4 x model=2, 2 clients``."""
    dims = " x ".join(f"{name}={count}" for name, count in mesh.dims.items())
    clients = {device.client.id for device in owned.values() if device.client}
    words = [count_of(mesh.size, f"{mesh.device_type} device"), dims, count_of(len(clients), "client")]
    return f"{mesh.name}: {', '.join(word for word in words if word)}"


def count_of(count: int, noun: str) -> str:
    """Write a number of things: ``1 client``, ``2 clients``."""
    return f"{count} {noun}{'s' * (count != 1)}"


@dataclass(frozen=True)
class Entry:
    """A line below the picture, with a client's tint where it is of one, and the sign of a phase."""

    client: int | None
    phase: Phase | None
    text: str


def notes(owned: Mapping[int, Owned]) -> list[Entry]:
    """Say what stands out: clients that ended, that wait, and devices that no client tells of."""
    clients = _clients(owned)
    found = [
        Entry(None, client.phase, f"client {client.id} {_how_it_ended(client)}")
        for client in clients
        if client.phase in ENDED
    ]
    waiting = [client.id for client in clients if client.phase is Phase.WAITING]
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        found.append(Entry(None, Phase.WAITING, f"{_some(waiting)} {verb} in a collective"))
    orphans = [device.id for device in owned.values() if device.client is None]
    if orphans:
        found.append(Entry(None, None, f"no client has told of {name_devices(orphans)} yet"))
    return found


def _how_it_ended(client: ClientState) -> str:
    reason = client.exit or (client.error.strip().splitlines() or [""])[-1]
    words = "failed" if client.phase is Phase.FAILED else "is dead"
    return f"{words}: {reason}" if reason else words


def phases(owned: Mapping[int, Owned]) -> str:
    """Say how many clients are in which phase: ``clients 0-2 ready; client 3 dead``."""
    by_phase: dict[Phase, list[int]] = {}
    for client in _clients(owned):
        by_phase.setdefault(client.phase, []).append(client.id)
    return "; ".join(f"{_some(ids)} {phase.value}" for phase, ids in by_phase.items())


def _clients(owned: Mapping[int, Owned]) -> list[ClientState]:
    found = {device.client.id: device.client for device in owned.values() if device.client}
    return [found[number] for number in sorted(found)]


def legend(owned: Mapping[int, Owned]) -> list[Entry]:
    """Say which devices are whose, each client's phase, and its memory; many clients are told of together."""
    devices: dict[int, list[int]] = {}
    for device in owned.values():
        if device.client:
            devices.setdefault(device.client.id, []).append(device.id)
    clients = _clients(owned)
    if len(clients) <= _MOST_CLIENTS:
        return [_entry(client, devices[client.id]) for client in clients]
    groups: dict[tuple[int, Phase], list[ClientState]] = {}
    for client in clients:
        groups.setdefault((len(devices[client.id]), client.phase), []).append(client)
    return [Entry(None, phase, _together(group, count)) for (count, phase), group in groups.items()]


def _together(clients: Sequence[ClientState], devices: int) -> str:
    each = " each" if len(clients) > 1 else ""
    words = [_some([client.id for client in clients]), count_of(devices, "device") + each, clients[0].phase.value]
    known = [memory for client in clients if (memory := memory_of(client)) is not None]
    if known:
        low, high = size(min(known)), size(max(known))
        words.append((low if low == high else f"{low} to {high}") + each)
    return ", ".join(words)


def _entry(client: ClientState, devices: Iterable[int]) -> Entry:
    memory = memory_of(client)
    words = [f"client {client.id}: {name_devices(devices)}", client.phase.value]
    words += [size(memory)] if memory is not None else []
    return Entry(client.id, client.phase, ", ".join(words))


def _some(clients: Sequence[int]) -> str:
    """Name clients, and only count them where the list would be long."""
    few = client_ranges(clients).count(",") < 6
    return name_clients(clients) if few else f"{len(clients)} clients of {min(clients)}-{max(clients)}"


def memory_of(client: ClientState) -> int | None:
    """Return a client's memory in bytes: its share of what clients share, where that is known."""
    return client.rss if client.pss is None else client.pss


def client_memory(owned: Mapping[int, Owned]) -> dict[int, str]:
    """Return, by the first device of each client, the client's memory in words, where its devices do not tell."""
    found: dict[int, str] = {}
    seen: set[int] = set()
    for device in owned.values():
        client = device.client
        if client is None or client.id in seen:
            continue
        seen.add(client.id)
        memory = memory_of(client)
        if memory is not None and not device.memory:
            found[device.id] = size(memory) if len(client.devices) == 1 else f"{size(memory)}, client"
    return found


def name_devices(devices: Iterable[int]) -> str:
    """Name devices in short: ``device 3``, ``devices 0-3, 6``, ``devices 0, 8 … 56``."""
    ids = sorted(set(devices))
    return f"device{'s' * (len(ids) != 1)} {device_ids(ids)}"


def device_ids(devices: Iterable[int]) -> str:
    """Write device ids in short: ``0-3, 6``, or ``0, 8 … 56`` where they are evenly apart."""
    ids = sorted(set(devices))
    steps = {second - first for first, second in itertools.pairwise(ids)}
    if len(ids) > 3 and len(steps) == 1 and steps != {1}:
        return f"{ids[0]}, {ids[1]} … {ids[-1]}"
    return client_ranges(ids)
