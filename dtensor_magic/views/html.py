"""A cluster as HTML that survives sanitisers: a heading and a table, no scripts, the page's own colours."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..state import ClusterState
from .text import COLUMNS, client_row, headline

_LEFT = 'style="text-align:left"'


def card(state: ClusterState) -> str:
    """Return the cluster's card."""
    head = "".join(f'<th scope="col" {_LEFT}>{name}</th>' for name in COLUMNS)
    body = "".join(_row(client_row(client)) for client in state.clients)
    notes = [f"client {client.id} {client.exit}" for client in state.clients if client.exit]
    notes += [state.last_error] if state.last_error else []
    cell = f"<div>runs: <code>{escape(state.cell)}</code></div>" if state.cell else ""
    return (
        f'<div role="group" aria-label="DTensor cluster {escape(state.name)}">'
        f"<div><b>{escape(headline(state))}</b></div>{cell}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        + "".join(f"<div>{escape(note)}</div>" for note in notes)
        + "</div>"
    )


def _row(cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<td {_LEFT}>{escape(cell)}</td>" for cell in cells) + "</tr>"
