"""A mesh's picture: every device in its place, with its client, how that stands, and memory."""

from __future__ import annotations

from collections.abc import Mapping

from ..state import ClusterState, MeshState, Phase
from . import columns
from .places import (
    ENDED,
    PHASE_ICONS,
    Entry,
    Grid,
    Owned,
    client_memory,
    grids,
    headline,
    legend,
    notes,
    owners,
    phases,
)
from .sheets import Sheet
from .svg import Drawing, flow, text_width, tint
from .text import MARKS

_LIMIT = 1080.0
#: Up to so many devices, a cell has words; up to so many, its device's index; with more, its client at most.
_WORDS, _INDICES = 32, 128


def svg(state: ClusterState, mesh: MeshState, *, themed: bool = False) -> str:
    """Return the picture as SVG.

    Parameters
    ----------
    state : ClusterState
    mesh : MeshState
    themed : bool
        In the page's own colours, to be inlined in HTML; else alone, on a light card.
    """
    owned = owners(state, mesh)
    drawing = Drawing(themed=themed)
    title = headline(mesh, owned)
    drawing.text(0, 12, title, size=13, bold=True)
    painter = _Painter(drawing, owned)
    blocks = []
    for grid in grids(mesh):
        with drawing.group() as node:
            blocks.append((node, *painter.grid(grid)))
    right, bottom = flow(blocks, limit=_LIMIT, top=26, gap=24)
    entries = [*(legend(owned) if mesh.size > _WORDS else ()), *notes(owned)]
    if mesh.size > _INDICES:
        entries.insert(0, Entry(None, None, "in a client's first cell: the client"))
    bottom += 10 * bool(entries)
    for entry in entries:
        _draw_entry(drawing, bottom, entry)
        bottom += 18
        right = max(right, text_width(entry.text) + 34)
    words = [phases(owned), *(entry.text for entry in notes(owned))]
    description = ". ".join(word for word in words if word)
    return drawing.finish(title, description, max(right, text_width(title, 13)), bottom)


class _Painter:
    def __init__(self, drawing: Drawing, owned: Mapping[int, Owned]) -> None:
        self._drawing = drawing
        self._owned = owned
        self._memory = client_memory(owned)
        count = len(owned)
        if count <= _WORDS:
            self._cell, self._size, self._most = self._words, (116.0, 60.0), 8
        elif count <= _INDICES:
            self._cell, self._size, self._most = self._index, (58.0, 38.0), 16
        else:
            self._cell, self._size, self._most = self._tiny, (22.0, 18.0), 32

    def grid(self, grid: Grid) -> tuple[float, float]:
        """Draw a grid of devices and return its size."""
        rows, across = len(grid.devices), len(grid.devices[0])
        sheet = Sheet(
            rows=[str(row) for row in range(rows)] if grid.down else [""] * rows,
            across=[str(column) for column in range(across)] if grid.over else [""] * across,
            down=grid.down,
            over=grid.over,
            width=self._size[0],
            height=self._size[1],
            title=grid.title,
            most=self._most,
            gap=6 if self._cell == self._words else 2,
        )

        def cell(row: int, column: int, x: float, y: float) -> None:
            device = self._owned[grid.devices[row][column]]
            with self._drawing.group(_tooltip(device, self._memory.get(device.id, "")), x, y):
                self._frame(device)
                before = self._owned[grid.devices[row][column - 1]] if column % self._most else None
                self._cell(device, before)

        return sheet.draw(self._drawing, cell)

    def _frame(self, device: Owned) -> None:
        client = device.client
        colour = tint(client.id if client else None)
        ended = client is not None and client.phase in ENDED
        self._drawing.box(
            0,
            0,
            *self._size,
            fill=colour,
            opacity=0.08 if ended or client is None else 0.24,
            stroke="alarm" if ended else colour,
            thick=2 if ended else 1.2,
            dash="4 3" if ended or client is None else "",
            radius=4 if self._size[0] > 30 else 2,
        )

    def _words(self, device: Owned, before: Owned | None) -> None:
        del before
        drawing, width = self._drawing, self._size[0]
        drawing.text(8, 17, f"{device.kind} {device.id}", bold=True)
        drawing.text(width - 8, 17, device.owner, size=11, anchor="end")
        if device.client:
            drawing.icon(PHASE_ICONS[device.client.phase], 8, 24)
            drawing.text(23, 33, device.client.phase.value, size=11)
        drawing.text(8, 48, device.memory or self._memory.get(device.id, ""), size=10, ink="muted")
        self._bar(device, 8, 52, width - 16, 4)

    def _index(self, device: Owned, before: Owned | None) -> None:
        del before
        drawing, width = self._drawing, self._size[0]
        drawing.text(5, 14, str(device.id), size=11, bold=True)
        if device.client:
            drawing.text(width - 5, 14, f"c{device.client.id}", size=10, anchor="end")
            drawing.icon(PHASE_ICONS[device.client.phase], 5, 20, 9)
        self._bar(device, 19, 23, width - 24, 4)

    def _tiny(self, device: Owned, before: Owned | None) -> None:
        client = device.client
        if client is None:
            return
        first = before is None or before.client is not client
        stands_out = client.phase in ENDED or client.phase is Phase.WAITING
        if stands_out and (not first or len(client.devices) == 1):
            self._drawing.icon(PHASE_ICONS[client.phase], 7, 5, 8)
        elif first:
            self._drawing.text(3, 12, str(client.id), size=9)

    def _bar(self, device: Owned, x: float, y: float, width: float, height: float) -> None:
        if device.fullness is not None:
            self._drawing.box(x, y, width, height, fill="line", radius=2)
            self._drawing.box(x, y, max(1.0, width * device.fullness), height, fill="ink", radius=2)


def _tooltip(device: Owned, memory: str) -> str:
    lines = [f"{device.kind} {device.id}, {device.owner}"]
    if device.client:
        lines[0] += f", {device.client.phase.value}"
        lines.append(device.device.name if device.device else "")
        lines.append(f"on {device.client.host}")
    lines += [f"memory: {device.memory or memory}"] if device.memory or memory else []
    return "; ".join(line for line in lines if line)


def _draw_entry(drawing: Drawing, y: float, entry: Entry) -> None:
    if entry.client is not None:
        colour = tint(entry.client)
        drawing.box(0, y + 2, 12, 12, fill=colour, opacity=0.24, stroke=colour, radius=2)
    left = 18 if entry.client is not None else 0
    if entry.phase is not None:
        drawing.icon(PHASE_ICONS[entry.phase], left, y + 3, 10)
        left += 16
    drawing.text(left, y + 12, entry.text)


def text(state: ClusterState, mesh: MeshState, *, width: int = 80) -> str:
    """Return the picture as text.

    Parameters
    ----------
    state : ClusterState
    mesh : MeshState
    width : int
        Columns of the terminal.
    """
    owned = owners(state, mesh)
    memory = client_memory(owned)
    shown = grids(mesh)
    lines = columns.wrap(headline(mesh, owned), width)
    across = len(shown[0].devices[0])
    worded = mesh.size <= _WORDS and across * 15 <= width - 14
    compact = mesh.size > _INDICES
    blocks = []
    for grid in shown:
        cells = [[_lines(owned[device], memory, worded, compact) for device in row] for row in grid.devices]
        block = columns.boxes(
            cells,
            rows=[str(row) for row in range(len(cells))] if grid.down else [""] * len(cells),
            across=[str(column) for column in range(across)] if grid.over else [""] * across,
            corner=f"{columns.clip(grid.down, 16)} ↓" if grid.down else "",
            over=f"{grid.over} →" if grid.over else "",
            limit=width,
            compact=compact,
        )
        blocks.append([*([columns.clip(grid.title, width)] if grid.title else []), *block])
    lines += columns.beside(blocks, width)
    if compact:
        lines.append(columns.clip("in the cells: each device's client", width))
    for entry in [*(() if worded else legend(owned)), *notes(owned)]:
        mark = f"{MARKS[entry.phase]} " if entry.phase else ""
        lines += columns.wrap(f"{mark}{entry.text}", width)
    return "\n".join(line.rstrip() for line in lines)


def _lines(device: Owned, memory: Mapping[int, str], worded: bool, compact: bool) -> list[str]:
    client = device.client
    mark = MARKS[client.phase] if client else "?"
    if compact:
        return [f"{mark}{client.id if client else ''}"]
    if not worded:
        return [f"{device.id} {mark}", f"c{client.id}" if client else "-"]
    return [
        f" {device.kind} {device.id} ",
        f" {device.owner} ",
        f" {mark} {client.phase.value if client else 'unknown'} ",
        *([f" {word} "] if (word := device.memory or memory.get(device.id, "")) else []),
    ]
