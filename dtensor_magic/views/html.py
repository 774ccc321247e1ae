"""A cluster as HTML that survives sanitisers: a heading and a table, no scripts, the page's own colours."""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape

from ..state import ClientState, ClusterState, hung_clients
from . import text

_COLUMNS = ("client", "phase", "since", "cell", "CPU", "memory", "devices", "last output", "pid", "host")

_LEFT = 'style="text-align:left"'


def card(state: ClusterState, *, headed: bool = True) -> str:
    """Return the cluster's card: its headline if `headed`, a table of its clients, and what is wrong."""
    now = time.time()
    hung = hung_clients(state, now)
    head = "".join(f'<th scope="col" {_LEFT}>{name}</th>' for name in _COLUMNS)
    body = "".join(_row(_cells(client, now, hung=client.id in hung)) for client in state.clients)
    title = f"<div><b>{escape(text.headline(state))}</b></div>" if headed else ""
    cell = f"<div>runs: <code>{escape(state.cell)}</code></div>" if state.cell else ""
    return (
        f'<div role="group" aria-label="DTensor cluster {escape(state.name)}">{title}{cell}'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        + "".join(f"<div>{escape(note)}</div>" for note in text.notes(state, now))
        + "</div>"
    )


def _cells(client: ClientState, now: float, *, hung: bool) -> tuple[str, ...]:
    return (
        str(client.id),
        text.phase(client, now, hung=hung),
        time.strftime("%H:%M:%S", time.localtime(client.since)) if client.since else "-",
        text.place(client),
        text.cpu(client),
        text.memory(client),
        text.devices(client),
        client.said[:60] or "-",
        str(client.pid or "-"),
        client.address or client.host,
    )


def _row(cells: Iterable[str]) -> str:
    first, *others = (escape(cell) for cell in cells)
    head = f'<th scope="row" {_LEFT}>{first}</th>'
    return f"<tr>{head}" + "".join(f"<td {_LEFT}>{cell}</td>" for cell in others) + "</tr>"
