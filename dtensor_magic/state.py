"""What every view shows: one definition of a cluster's state, its clients' and its devices'.

The status magic, the panel, the REST interface and ``dtensor-magic list`` all read these classes, and
agents send them as JSON.
"""

from __future__ import annotations

import enum
import itertools
import math
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Seconds in a collective, while a peer does not run the cell, after which a client is called hung.
HUNG = 2.0


class Phase(str, enum.Enum):
    """Where a client stands."""

    STARTING = "starting"
    INITIALISING = "initialising"
    READY = "ready"
    BUSY = "busy"
    WAITING = "waiting"
    FAILED = "failed"
    DEAD = "dead"


class ClusterPhase(str, enum.Enum):
    """Where a cluster stands."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass
class DeviceState:
    """One device of the mesh.

    Attributes
    ----------
    name : str
        TensorFlow's full name, e.g. ``/job:worker/replica:0/task:0/device:CPU:0``.
    global_id : int
        Its place in the cluster's order of devices.
    type : str
        CPU, GPU or TPU.
    memory_used, memory_limit : int or None
        Bytes; None where the device does not tell.
    utilisation : float or None
        Percent.
    coordinates : dict of str to int
        Its place in the mesh, by dimension.
    """

    name: str
    global_id: int
    type: str
    memory_used: int | None = None
    memory_limit: int | None = None
    utilisation: float | None = None
    coordinates: dict[str, int] = field(default_factory=dict)


@dataclass
class CellSpan:
    """A cell on one client, in time.

    Attributes
    ----------
    cell : str
        ``In[3]`` of the client's own count.
    text : str
        Its first line.
    start : float
        Seconds since the epoch.
    end : float or None
        None while it runs.
    outcome : str
        ``running``, ``done``, ``failed``, ``interrupted``, or ``died`` with its client.
    waits : list of (float, float or None)
        When it waited in a collective: begin and end; the end is None while it does.
    run : str
        Names the cell as its driver sent it: the same on all clients that got it. Empty for code from elsewhere.
    """

    cell: str
    text: str
    start: float
    end: float | None = None
    outcome: str = "running"
    waits: list[tuple[float, float | None]] = field(default_factory=list)
    run: str = ""

    def finish(self, end: float, outcome: str) -> None:
        """Note that it is over; a wait that was going on ends with it."""
        self.end, self.outcome = end, outcome
        self.close_wait(end)

    def close_wait(self, end: float) -> None:
        """End the wait that is going on, if one is."""
        if self.waits and self.waits[-1][1] is None:
            self.waits[-1] = self.waits[-1][0], end

    def condense(self, most: int) -> None:
        """Keep at most `most` waits: those that are nearest to each other become one."""
        while len(self.waits) > most:
            gaps = [after[0] - (before[1] or after[0]) for before, after in itertools.pairwise(self.waits)]
            at = gaps.index(min(gaps))
            self.waits[at : at + 2] = [(self.waits[at][0], self.waits[at + 1][1])]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CellSpan:
        """Make a span of what :func:`to_json` made of one."""
        return cls(**{**data, "waits": [(begin, end) for begin, end in data.get("waits", ())]})


@dataclass
class ClientState:
    """One client: a process of the cluster.

    Attributes
    ----------
    id : int
        The DTensor client id.
    host, address : str
        Where it runs; its entry in ``DTENSOR_JOBS`` (empty in local mode).
    pid : int or None
    phase : Phase
    cell : str or None
        The cell that runs, or ran last, as ``In[3]`` of the client's own count.
    line : int or None
        The line of that cell, where known.
    since : float
        When it entered the phase, seconds since the epoch.
    rss, pss : int or None
        Bytes of memory: resident, and its proportional share of what clients share.
    cpu : float or None
        Percent of one core.
    exit : str or None
        How it ended, in words.
    error : str
        Its traceback, if it failed to come up.
    said : str
        The last line that it put out.
    cells : list of CellSpan
        The last cells, oldest first.
    devices : list of DeviceState
    """

    id: int
    host: str = "localhost"
    pid: int | None = None
    address: str = ""
    phase: Phase = Phase.STARTING
    cell: str | None = None
    line: int | None = None
    since: float = 0.0
    rss: int | None = None
    pss: int | None = None
    cpu: float | None = None
    exit: str | None = None
    error: str = ""
    said: str = ""
    cells: list[CellSpan] = field(default_factory=list)
    devices: list[DeviceState] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClientState:
        """Make a state of what :func:`to_json` made of one."""
        values = dict(data)
        values["phase"] = Phase(values["phase"])
        values["devices"] = [DeviceState(**device) for device in values.get("devices", ())]
        values["cells"] = [CellSpan.from_json(cell) for cell in values.get("cells", ())]
        return cls(**values)


@dataclass
class MeshState:
    """One mesh.

    Attributes
    ----------
    name : str
        The variable that holds it on the clients.
    dims : dict of str to int
        Sizes by dimension name, in order.
    device_type : str
    devices : list of int
        The devices' global ids, the last dimension running fastest; empty where they are 0, 1, 2, ...
    """

    name: str
    dims: dict[str, int]
    device_type: str
    devices: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.dims.values())

    def places(self) -> list[tuple[int, dict[str, int]]]:
        """Return each device's global id and its coordinates by dimension, the last one running fastest."""
        ids = self.devices or range(self.size)
        steps = itertools.product(*(range(size) for size in self.dims.values()))
        return [(device, dict(zip(self.dims, step, strict=True))) for device, step in zip(ids, steps, strict=True)]


@dataclass
class ClusterState:
    """A cluster.

    Attributes
    ----------
    name : str
    mode : str
        ``local`` (one client, no ``DTENSOR_JOBS``) or ``multi-client``.
    device_type : str
    phase : ClusterPhase
    meshes : list of MeshState
    clients : list of ClientState
    cell : str or None
        The first line of the cell that runs.
    created : float
        Seconds since the epoch.
    last_error : str
    """

    name: str
    mode: str
    device_type: str
    phase: ClusterPhase = ClusterPhase.STARTING
    meshes: list[MeshState] = field(default_factory=list)
    clients: list[ClientState] = field(default_factory=list)
    cell: str | None = None
    created: float = 0.0
    last_error: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClusterState:
        """Make a state of what :func:`to_json` made of one."""
        values = dict(data)
        values["phase"] = ClusterPhase(values["phase"])
        values["meshes"] = [MeshState(**mesh) for mesh in values.get("meshes", ())]
        values["clients"] = [ClientState.from_json(client) for client in values.get("clients", ())]
        return cls(**values)


def to_json(state: ClusterState | ClientState) -> dict[str, Any]:
    """Return `state` as a dict that JSON can hold."""
    # Not `dataclasses.asdict`, whose deep copies cost more than all else in a look at a cluster.
    data = dict(vars(state))
    if isinstance(state, ClusterState):
        return {
            **data,
            "meshes": [dict(vars(mesh)) for mesh in state.meshes],
            "clients": [to_json(client) for client in state.clients],
        }
    return {
        **data,
        "devices": [dict(vars(device)) for device in state.devices],
        "cells": [dict(vars(cell)) for cell in state.cells],
    }


def hung_clients(state: ClusterState, now: float) -> list[int]:
    """Return the clients that wait in a collective for one that will not come: it is idle, or gone."""
    waiting = [client.id for client in state.clients if client.phase is Phase.WAITING and now - client.since > HUNG]
    absent = any(client.phase in (Phase.READY, Phase.FAILED, Phase.DEAD) for client in state.clients)
    return waiting if absent else []


def client_ranges(clients: Iterable[int]) -> str:
    """Write client ids briefly: ``0-3, 6``."""
    ids = sorted(set(clients))
    parts: list[str] = []
    start = 0
    for position, client in enumerate(ids):
        if position + 1 == len(ids) or ids[position + 1] != client + 1:
            first = ids[start]
            parts.append(str(first) if first == client else f"{first}-{client}")
            start = position + 1
    return ", ".join(parts)


def name_clients(clients: Iterable[int]) -> str:
    """Name clients in a sentence: ``client 2``, ``clients 0-3, 6``."""
    ids = set(clients)
    return f"client{'s' * (len(ids) != 1)} {client_ranges(ids)}"


def describe_exit(code: int | None) -> str:
    """Say how a process ended, from its exit code (negative: the signal, as in ``subprocess``)."""
    if code is None:
        return "ended (its exit code is not known)"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {
        "SIGKILL": " (by hand, or by the system when memory ran out)",
        "SIGSEGV": " (a crash in native code)",
        "SIGABRT": " (an abort in native code)",
    }.get(name, "")
    return f"was killed by {name}{hint}"
