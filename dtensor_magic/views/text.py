"""A cluster as text, 80 columns wide where its contents allow."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..state import ClientState, ClusterState, Phase, client_ranges

COLUMNS = ("client", "phase", "pid", "memory", "CPU", "devices", "address")

_MARKS = {
    Phase.STARTING: "·",
    Phase.INITIALISING: "…",
    Phase.READY: "✓",
    Phase.BUSY: "▶",
    Phase.WAITING: "⏸",
    Phase.FAILED: "✗",
    Phase.DEAD: "✗",
}


def headline(state: ClusterState) -> str:
    """Say what the cluster is in one line."""
    count = len(state.clients)
    meshes = "".join(
        f", {mesh.name} {' x '.join(f'{name}={size}' for name, size in mesh.dims.items())}" for mesh in state.meshes
    )
    noun = "client" if count == 1 else "clients"
    return f"{state.name}: {state.phase.value}, {count} {state.device_type} {noun} ({state.mode}){meshes}"


def card(state: ClusterState) -> str:
    """Return the headline and a table of the clients."""
    rows = [COLUMNS, *(client_row(client) for client in state.clients)]
    lines = [headline(state)]
    if state.cell:
        lines.append(f"runs: {state.cell}")
    lines += ["", *table(rows)]
    lines += [f"client {client.id} {client.exit}" for client in state.clients if client.exit]
    if state.last_error:
        lines.append(state.last_error)
    return "\n".join(lines)


def client_row(client: ClientState) -> tuple[str, ...]:
    """Return a client's row of the table, a text per column."""
    phase = f"{_MARKS[client.phase]} {client.phase.value}"
    if client.phase in (Phase.BUSY, Phase.WAITING):
        phase += f" {elapsed(time.time() - client.since)}"
    return (
        str(client.id),
        phase,
        str(client.pid or "-"),
        size(client.pss if client.pss is not None else client.rss),
        "-" if client.cpu is None else f"{client.cpu:.0f} %",
        _devices(client),
        client.address or "-",
    )


def _devices(client: ClientState) -> str:
    if not client.devices:
        return "-"
    first, last = client.devices[0].global_id, client.devices[-1].global_id
    kind = client.devices[0].type
    return f"{kind} {first}" if first == last else f"{kind} {first}-{last}"


def table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the rows as lines, their columns aligned."""
    cells = list(rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def progress(state: ClusterState) -> str:
    """Say in one line where the clients stand while they come up."""
    by_phase: dict[Phase, list[int]] = {}
    for client in state.clients:
        by_phase.setdefault(client.phase, []).append(client.id)
    parts = [f"{client_ranges(ids)} {phase.value}" for phase, ids in by_phase.items()]
    return f"{state.name}: " + ("; ".join(parts) or "starting the host agent")


def size(count: int | None) -> str:
    """Write a number of bytes for people; ``-`` for None."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def elapsed(seconds: float) -> str:
    """Write a duration for people."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
