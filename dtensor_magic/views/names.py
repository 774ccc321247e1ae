"""The variable explorer: what names hold on the clients, and where the clients differ."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..variables import OWN_VALUE, NameState, VariableState
from .columns import clean, clip, table, wrap
from .text import size

_COLUMNS = ("name", "type", "shape", "dtype", "layout or value", "bytes")
_NONE = "the clients hold no names yet"
_LEFT = 'style="text-align:left"'


def text(names: Sequence[NameState], *, width: int = 80) -> str:
    """Return the names as a table; what differs between clients stands below a name.

    Parameters
    ----------
    names : sequence of NameState
    width : int
        Columns of the terminal.
    """
    if not names:
        return clip(_NONE, width)
    head, *lines = table([_COLUMNS, *(_row(name.first, brief=True) for name in names)], width)
    found = [head]
    for name, line in zip(names, lines, strict=True):
        found.append(line)
        if name.difference:
            found += wrap(_flag(name), width, indent="    ", first="  ")
    return "\n".join(line.rstrip() for line in found)


def html(names: Sequence[NameState]) -> str:
    """Return the names as a plain table, which sanitisers leave as it is."""
    if not names:
        return f"<div>{_NONE}</div>"
    head = "".join(f'<th scope="col" {_LEFT}>{name}</th>' for name in (*_COLUMNS, "clients"))
    body = "".join(_html_row(name) for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(variable: VariableState, *, brief: bool) -> tuple[str, ...]:
    shape = "" if variable.shape is None else f"({', '.join(map(str, variable.shape))})"
    return (variable.name, variable.type, shape, variable.dtype, _layout(variable, brief=brief), _bytes(variable))


def _layout(variable: VariableState, *, brief: bool) -> str:
    """Write the layout, with the mesh's dimensions where there is room; of what has none, what it is."""
    dims = (
        "" if variable.mesh is None else ", ".join(f"{name}={count}" for name, count in variable.mesh.dims.items())
    )
    if variable.specs is not None:
        specs = f"[{', '.join(variable.specs)}]"
        return f"{specs} on {dims}" if dims and not brief else specs
    if variable.kind == "group":
        count = sum(1 for _ in variable.leaves())
        return f"{count} tensor{'s' * (count != 1)}"
    return dims or clip(variable.text, 60)


def _bytes(variable: VariableState) -> str:
    if variable.kind == "group" and variable.nbytes is None:
        return size(sum(leaf.nbytes or 0 for leaf in variable.leaves()))
    return "" if variable.nbytes is None else size(variable.nbytes)


def _flag(name: NameState) -> str:
    """Say in what the clients differ, with a sign: values that differ may well be meant to."""
    return f"{'≠' if name.difference == OWN_VALUE else '⚠'} {name.difference}"


def _html_row(name: NameState) -> str:
    first, *cells = (escape(clean(cell)) for cell in _row(name.first, brief=False))
    clients = escape(clean(_flag(name))) if name.difference else "✓ alike"
    body = "".join(f"<td {_LEFT}>{cell}</td>" for cell in (*cells, clients))
    return f'<tr><th scope="row" {_LEFT}>{first}</th>{body}</tr>'
