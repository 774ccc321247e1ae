"""The layout picture as text."""

from __future__ import annotations

from collections.abc import Sequence

from ...state import ClusterState
from ...variables import Range, VariableState, client_of, device_bytes
from .. import columns
from ..text import size
from . import words
from .pieces import Panel, axis_name, cut, heat_of, heat_scale, range_text, shade, slice_text

_SHADES = " ░▒▓█"
#: A panel of more parts than these has no lines between them.
_MOST_BOXED = 128
_BAR = 24
#: More parts than these are not listed.
_MOST_LISTED = 64


def text(variables: Sequence[VariableState], state: ClusterState | None = None, *, width: int = 80) -> str:
    """Return the picture as text; several tensors stand side by side where they fit.

    Parameters
    ----------
    variables : sequence of VariableState
        What the names hold on one client.
    state : ClusterState or None
        Tells which client each device belongs to, and devices that hold nothing.
    width : int
        Columns of the terminal.
    """
    blocks = [_block(variable, state, width) for variable in variables]
    return "\n".join(line.rstrip() for line in columns.beside(blocks, width))


def _block(variable: VariableState, state: ClusterState | None, width: int) -> list[str]:
    lines = columns.wrap(words.title(variable), width)
    if variable.kind == "group":
        return lines + _group(variable, state, width)
    if not words.has_layout(variable):
        return lines + columns.wrap(words.plain(variable), width)
    painter = _Painter(variable, client_of(state) if state else {}, width)
    drawing = columns.beside([painter.panel(panel) for panel in painter.cut.panels], width)
    # What is said takes no more room than the drawing, so that a second tensor fits beside.
    room = min(width, max(38, *(columns.columns(line) for line in drawing)))
    lines = columns.wrap(words.title(variable), room)
    for line in words.about(variable, state, ("blank", "full")):
        lines += columns.wrap(line, room)
    return lines + drawing + [part for line in painter.key() for part in columns.wrap(line, width)]


class _Painter:
    def __init__(self, variable: VariableState, clients: dict[int, int], width: int) -> None:
        self.cut = cut(variable)
        self._variable = variable
        self._clients = clients
        self._width = width
        self._down, self._over = axis_name(variable, self.cut.down), axis_name(variable, self.cut.over)
        widest = max(columns.columns(line) for part in self.cut.holders for line in self._words(part))
        margin = max(len(range_text(row)) for panel in self.cut.panels for row in panel.rows) + 3
        fits = margin + self.cut.most * (widest + 1) <= width
        self._compact = len(self.cut.holders) > _MOST_BOXED or not (fits or variable.heat)

    def panel(self, panel: Panel) -> list[str]:
        head = [columns.clip(panel.title, self._width)] if panel.title else []
        # An axis's name is longer than its ranges, and would push the boxes to the right.
        head += [f"{columns.clip(self._down, self._width - 2)} ↓"] if self._down else []
        return head + columns.boxes(
            [[self._cell(part) for part in row] for row in panel.parts],
            rows=[range_text(row) if self._down else "" for row in panel.rows],
            across=[range_text(column) if self._over else "" for column in panel.across],
            over=f"{self._over} →" if self._over else "",
            limit=self._width,
            compact=self._compact,
        )

    def key(self) -> list[str]:
        """Say what stands in the cells where they have no words, and which devices share which part."""
        if not self._compact:
            return []
        lines = [words.in_cells(self.cut.holders.values())]
        if all(len(devices) == 1 for devices in self.cut.holders.values()):
            return lines
        if len(self.cut.holders) <= _MOST_LISTED:
            for part, devices in self.cut.holders.items():
                lines.append(f"{slice_text(part)} {words.holders_text(devices, self._clients)}")
        return lines

    def _cell(self, part: tuple[Range, ...]) -> list[str]:
        if self._compact:
            first, *others = self.cut.holders[part]
            return [f"{first}+{len(others)}" if others else str(first)]
        return self._words(part)

    def _words(self, part: tuple[Range, ...]) -> list[str]:
        lines = [f" {line} " for line in words.cell(self.cut.holders[part], self._clients)]
        heat = heat_of(self._variable, part)
        if heat is not None:
            scale = heat_scale(self._variable)
            lines += [
                " " + "".join("!!" if value is None else _shade(value, scale) for value in row) for row in heat.grid
            ]
        return lines


def _shade(value: float, scale: tuple[float, float]) -> str:
    return _SHADES[min(len(_SHADES) - 1, int(shade(value, scale) * len(_SHADES)))] * 2


def _group(group: VariableState, state: ClusterState | None, width: int) -> list[str]:
    lines = columns.table([words.COLUMNS, *words.rows(group)], width)
    for note in words.group_notes(group, state):
        lines += columns.wrap(note, width)
    held = device_bytes(leaf for leaf in group.leaves() if words.has_layout(leaf))
    if held and len(held) <= _MOST_BOXED:
        most = max(held.values()) or 1
        lines += columns.table(
            [(f"device {device}", "▇" * round(count / most * _BAR), size(count)) for device, count in held.items()],
            width,
        )
    return lines
