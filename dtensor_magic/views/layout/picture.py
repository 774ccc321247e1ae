"""The layout picture as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from ...state import ClusterState
from ...variables import HeatState, Range, VariableState, client_of, device_bytes
from ..columns import clip
from ..places import device_ids
from ..sheets import Sheet
from ..svg import NEUTRAL, Drawing, flow, text_width, tint
from ..text import size
from . import words
from .pieces import Cut, Panel, axis_name, cut, heat_of, heat_scale, range_text, shade, slice_text

_LIMIT = 1080.0
#: Up to so many parts have words, where there is room.
_MOST_WORDED = 48
#: Up to so many columns and parts have cells for several devices' ids.
_IDS = (12, 144)
#: From Viridis, whose brightness falls all the way, so that it reads without colours too.
_SCALE = ((253, 231, 37), (94, 201, 98), (33, 145, 140), (59, 82, 139), (68, 1, 84))
_LINE = 16.0


def svg(variables: Sequence[VariableState], state: ClusterState | None = None, *, themed: bool = False) -> str:
    """Return the picture as SVG; several tensors stand side by side.

    Parameters
    ----------
    variables : sequence of VariableState
        What the names hold on one client.
    state : ClusterState or None
        Tells which client each device belongs to, and devices that hold nothing.
    themed : bool
        In the page's own colours, to be inlined in HTML; else alone, on a light card.
    """
    drawing = Drawing(themed=themed)
    blocks = []
    for variable in variables:
        with drawing.group() as node:
            blocks.append((node, *_block(drawing, variable, state)))
    right, bottom = flow(blocks, limit=_LIMIT, top=0, gap=32)
    label = f"Layout of {', '.join(words.title(variable) for variable in variables)}"
    description = " ".join(f"{variable.name}: {words.description(variable, state)}." for variable in variables)
    return drawing.finish(label, description, right, bottom)


def _block(drawing: Drawing, variable: VariableState, state: ClusterState | None) -> tuple[float, float]:
    title = clip(words.title(variable), 130)
    drawing.text(0, 12, title, size=13, bold=True)
    right, y = text_width(title, 13), 22.0
    if variable.kind == "group":
        width, y = _group(drawing, variable, state, y)
        return max(right, width), y
    drawn = words.has_layout(variable)
    lines = words.about(variable, state, words.SHADES) if drawn else [words.plain(variable)]
    for line in (clip(line, 150) for line in lines):
        drawing.text(0, y + 11, line, ink="muted")
        right, y = max(right, text_width(line)), y + _LINE
    if drawn:
        width, y = _panels(drawing, variable, state, y + 8)
        right = max(right, width)
    elif variable.kind in ("tensor", "array"):
        drawing.box(0, y + 8, 120, 44, fill=NEUTRAL, opacity=0.2, stroke="line", dash="4 3", radius=3)
        where = "on each client" if variable.client is None else f"client {variable.client}"
        drawing.text(60, y + 34, where, size=11, anchor="middle")
        y += 56
    return right, y


def _panels(
    drawing: Drawing, variable: VariableState, state: ClusterState | None, top: float
) -> tuple[float, float]:
    drawn = cut(variable)
    clients = client_of(state) if state else {}
    painter = _Painter(drawing, variable, drawn, clients)
    blocks = []
    with drawing.group("", 0, top):
        for panel in drawn.panels:
            with drawing.group() as node:
                blocks.append((node, *painter.panel(panel)))
        right, bottom = flow(blocks, limit=_LIMIT, top=0, gap=20)
        key = "" if painter.in_words else words.in_cells(drawn.holders.values())
        if key:
            drawing.text(0, bottom + 18, key, size=11, ink="muted")
            right, bottom = max(right, text_width(key, 11)), bottom + 22
    return right, top + bottom


class _Painter:
    def __init__(self, drawing: Drawing, variable: VariableState, drawn: Cut, clients: dict[int, int]) -> None:
        self._drawing = drawing
        self._variable = variable
        self._cut = drawn
        self._clients = clients
        self._scale = heat_scale(variable)
        count = len(drawn.holders)
        lines = [line for devices in drawn.holders.values() for line in words.cell(devices, clients)]
        worded = min(260.0, max(96.0, *(text_width(line, 11) + 16 for line in lines)))
        self.in_words = drawn.most * worded <= _LIMIT - 120 and count <= _MOST_WORDED
        if self.in_words:
            self._size = (worded, 44.0)
        elif drawn.most <= _IDS[0] and count <= _IDS[1]:
            self._size = (76.0, 28.0)
        else:
            self._size = (26.0, 18.0)
        if variable.heat:
            self._size = (max(self._size[0], 76.0), self._size[1] + self._heat_height())

    def _heat_height(self) -> float:
        rows = max(len(heat.grid) for heat in self._variable.heat)
        return min(80.0, max(12.0, rows * 10.0)) + 4

    def panel(self, panel: Panel) -> tuple[float, float]:
        """Draw a rectangle of the tensor and return its size."""
        down, over = axis_name(self._variable, self._cut.down), axis_name(self._variable, self._cut.over)
        sheet = Sheet(
            rows=[range_text(row) if down else "" for row in panel.rows],
            across=[range_text(column) if over else "" for column in panel.across],
            down=down,
            over=over,
            width=self._size[0],
            height=self._size[1],
            title=panel.title,
            most=max(1, int(900 / (self._size[0] + 2))),
            gap=2,
            above=True,
        )

        def cell(row: int, column: int, x: float, y: float) -> None:
            part = panel.parts[row][column]
            devices = self._cut.holders[part]
            with self._drawing.group(self._tooltip(part, devices), x, y):
                self._part(part, devices)

        return sheet.draw(self._drawing, cell)

    def _tooltip(self, part: tuple[Range, ...], devices: Sequence[int]) -> str:
        return f"{self._variable.name}{slice_text(part)}: {words.holders_text(devices, self._clients)}"

    def _part(self, part: tuple[Range, ...], devices: Sequence[int]) -> None:
        drawing, (width, height) = self._drawing, self._size
        owners = sorted({self._clients[device] for device in devices if device in self._clients})
        # Clients of one tint would look like one client.
        distinct = len({tint(owner) for owner in owners}) == len(owners)
        shown: list[int | None] = [*owners] if owners and distinct else [None]
        for position, owner in enumerate(shown):
            stripe = width / len(shown)
            drawing.box(position * stripe, 0, stripe, height, fill=tint(owner), opacity=0.24)
        drawing.box(0, 0, width, height, stroke=tint(shown[0]) if len(shown) == 1 else "muted", thick=1.2)
        if self.in_words:
            most = int((width - 12) / 6.6)
            for row, line in enumerate(words.cell(devices, self._clients)):
                drawing.text(7, 17 + row * 16, clip(line, most), size=11, bold=not row)
        elif width > 40:
            ids = device_ids(devices)
            drawing.text(6, 18, ids if len(ids) <= 10 else f"{devices[0]} + {len(devices) - 1}", size=11)
        else:
            text = str(devices[0]) if len(devices) == 1 else f"{devices[0]}+{len(devices) - 1}"
            drawing.text(width / 2, 12, clip(text, 6), size=9 if len(text) < 5 else 7.5, anchor="middle")
        heat = heat_of(self._variable, part)
        if heat is not None:
            tall = self._heat_height() - 4
            self._heat(heat, 5, height - tall - 5, width - 10, tall)

    def _heat(self, heat: HeatState, x: float, y: float, width: float, height: float) -> None:
        rows = len(heat.grid)
        for row, values in enumerate(heat.grid):
            for column, value in enumerate(values):
                wide, tall = width / len(values), height / rows
                left, top = x + column * wide, y + row * tall
                if value is None:
                    self._drawing.box(left, top, wide, tall, stroke="alarm")
                    self._drawing.text(
                        left + wide / 2, top + tall / 2 + 4, "!", size=11, bold=True, anchor="middle"
                    )
                else:
                    self._drawing.box(left, top, wide, tall, fill=_colour(shade(value, self._scale)))


def _colour(at: float) -> str:
    place = at * (len(_SCALE) - 1)
    first = min(int(place), len(_SCALE) - 2)
    mixed = (
        round(low + (high - low) * (place - first))
        for low, high in zip(_SCALE[first], _SCALE[first + 1], strict=True)
    )
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _group(drawing: Drawing, group: VariableState, state: ClusterState | None, top: float) -> tuple[float, float]:
    rows = [tuple(clip(cell, 44) for cell in row) for row in [words.COLUMNS, *words.rows(group)]]
    widths = [max(text_width(row[column], 11) for row in rows) + 14 for column in range(len(words.COLUMNS))]
    y = top
    for number, row in enumerate(rows):
        x = 0.0
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            number_like = column >= len(row) - 2
            drawing.text(
                x + (width - 14 if number_like else 0),
                y + 11,
                cell,
                size=11,
                bold=not number,
                anchor="end" if number_like else "",
            )
            x += width
        y += _LINE
        if not number:
            drawing.box(0, y - 1, sum(widths) - 14, 0.5, fill="line")
            y += 2
    right, y = sum(widths) - 14, y + 6
    for note in words.group_notes(group, state):
        drawing.text(0, y + 11, clip(note, 150), ink="muted")
        right, y = max(right, text_width(clip(note, 150))), y + _LINE
    return _device_bars(drawing, group, state, right, y + 6)


def _device_bars(
    drawing: Drawing, group: VariableState, state: ClusterState | None, right: float, top: float
) -> tuple[float, float]:
    """Draw what each device holds as a bar, in columns of sixteen."""
    held = device_bytes(leaf for leaf in group.leaves() if words.has_layout(leaf))
    if not held or len(held) > _IDS[1]:
        return right, top - 6
    clients = client_of(state) if state else {}
    most = max(held.values()) or 1
    for place, (device, count) in enumerate(held.items()):
        x, y = place // 16 * 250.0, top + place % 16 * _LINE
        with drawing.group(f"{words.holders_text([device], clients)}: {count} bytes", x, y):
            drawing.text(58, 11, f"device {device}", size=11, anchor="end")
            colour = tint(clients.get(device))
            drawing.box(64, 2, max(1.0, 100.0 * count / most), 10, fill=colour, opacity=0.5, stroke=colour)
            drawing.text(170, 11, size(count), size=11)
        right = max(right, x + 230)
    return right, top + min(16, len(held)) * _LINE
