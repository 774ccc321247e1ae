"""A cluster as text, 80 columns wide where its contents allow."""

from __future__ import annotations

import time

from ..state import ClientState, ClusterState, Phase, client_ranges, hung_clients, name_clients
from .columns import columns, table

#: Columns of a terminal's table. The address comes last, and only where there is room.
COLUMNS = ("client", "phase", "cell", "pid", "memory", "CPU", "devices", "address")

WIDTH = 80

MARKS = {
    Phase.STARTING: "·",
    Phase.INITIALISING: "…",
    Phase.READY: "✓",
    Phase.BUSY: "▶",
    Phase.WAITING: "‖",
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
    now = time.time()
    hung = hung_clients(state, now)
    rows = [COLUMNS, *(_row(client, now, hung=client.id in hung) for client in state.clients)]
    shown = table(rows)
    if max(map(columns, shown)) > WIDTH:
        shown = table([row[:-1] for row in rows])
    lines = [headline(state)]
    if state.cell:
        lines.append(f"runs: {state.cell}")
    lines += ["", *shown, *last_words(state), *notes(state, now)]
    return "\n".join(lines)


def _row(client: ClientState, now: float, *, hung: bool) -> tuple[str, ...]:
    return (
        str(client.id),
        phase(client, now, hung=hung),
        place(client),
        str(client.pid or "-"),
        memory(client),
        cpu(client),
        devices(client),
        client.address or "-",
    )


def phase(client: ClientState, now: float, *, hung: bool = False) -> str:
    """Say where a client stands, with a mark: ``‖ waiting 3 s``."""
    words = f"{MARKS[client.phase]} {client.phase.value}"
    if hung:
        words = "⚠ hung"
    if client.phase in (Phase.BUSY, Phase.WAITING):
        words += f" {elapsed(now - client.since)}"
    return words


def place(client: ClientState) -> str:
    """Say which cell a client runs, or ran last, and in which line it stands: ``In[3]:4``."""
    return (client.cell or "-") + (f":{client.line}" if client.line else "")


def memory(client: ClientState) -> str:
    """Write a client's memory: its proportional share, where the system tells."""
    return size(client.pss if client.pss is not None else client.rss)


def cpu(client: ClientState) -> str:
    """Write a client's CPU use."""
    return "-" if client.cpu is None else f"{client.cpu:.0f} %"


def last_words(state: ClusterState) -> list[str]:
    """Return the clients' last lines of output, those that are alike once."""
    by_line: dict[str, list[int]] = {}
    for client in state.clients:
        if client.said:
            by_line.setdefault(client.said, []).append(client.id)
    return [f"[{client_ranges(clients)}] said last: {line}"[:WIDTH] for line, clients in by_line.items()]


def notes(state: ClusterState, now: float) -> list[str]:
    """Say what is wrong, a line each."""
    found = [f"{MARKS[Phase.DEAD]} client {client.id} {client.exit}" for client in state.clients if client.exit]
    hung = hung_clients(state, now)
    if hung:
        others = [client.id for client in state.clients if client.phase is Phase.READY]
        idle = f", and {name_clients(others)} {'is' if len(others) == 1 else 'are'} idle" if others else ""
        verb = "waits" if len(hung) == 1 else "wait"
        found.append(f"⚠ {name_clients(hung)} {verb} in a collective{idle}; interrupting releases them.")
    return [*found, *([state.last_error] if state.last_error else [])]


def devices(client: ClientState) -> str:
    """Write which devices are a client's: ``CPU 4-7``."""
    if not client.devices:
        return "-"
    first, last = client.devices[0].global_id, client.devices[-1].global_id
    kind = client.devices[0].type
    return f"{kind} {first}" if first == last else f"{kind} {first}-{last}"


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
