"""A grid of cells with names and labels on its axes: what the mesh and the layout picture are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .columns import clip
from .svg import Drawing, text_width


@dataclass(frozen=True)
class Sheet:
    """A grid to draw.

    Attributes
    ----------
    rows, across : sequence of str
        A label per row and per column.
    down, over : str
        What the rows' and the columns' labels count.
    width, height : float
        Of a cell.
    title : str
    most : int
        Columns side by side; further ones come below.
    gap : float
        Between cells.
    above : bool
        The name of what runs down is long, and stands above all.
    """

    rows: Sequence[str]
    across: Sequence[str]
    down: str
    over: str
    width: float
    height: float
    title: str = ""
    most: int = 1000
    gap: float = 4
    above: bool = False

    def draw(self, drawing: Drawing, cell: Callable[[int, int, float, float], None]) -> tuple[float, float]:
        """Draw it at (0, 0), each cell by a call with its row, its column and its corner.

        Returns
        -------
        tuple of float
            Width and height.
        """
        down = f"{clip(self.down, 60 if self.above else 20)} ↓" if self.down else ""
        labels = [clip(label, 17) for label in self.rows]
        left = max(text_width(label, 11) for label in (labels if self.above else (down, *labels)))
        left += 8 if left else 0
        over = f"{clip(self.over, 60)} →" if self.over else ""
        y, right = 0.0, left + text_width(over, 11)
        if self.title:
            drawing.text(0, 11, self.title, bold=True)
            y, right = 20, max(right, text_width(self.title))
        if self.above and down:
            drawing.text(0, y + 10, down, size=11, ink="muted")
            y, right, down = y + 16, max(right, text_width(down, 11)), ""
        for first in range(0, len(self.across), self.most):
            columns = range(first, min(first + self.most, len(self.across)))
            if over and not first:
                drawing.text(left, y + 10, over, size=11, ink="muted")
                y += 16
            if any(self.across) or down:
                drawing.text(0, y + 10, down, size=11, ink="muted")
                self._draw_labels(drawing, columns, left, y + 10)
                y += 15
            for row, label in enumerate(labels):
                if label and row % self._row_step() == 0:
                    drawing.text(left - 8, y + self.height / 2 + 4, label, size=11, anchor="end")
                for place, column in enumerate(columns):
                    cell(row, column, left + place * (self.width + self.gap), y)
                y += self.height + self.gap
            right = max(right, left + len(columns) * (self.width + self.gap) - self.gap)
            y += 8
        return right, y - 8

    def _row_step(self) -> int:
        return math.ceil(13 / (self.height + self.gap))

    def _draw_labels(self, drawing: Drawing, columns: range, left: float, y: float) -> None:
        room = self.width + self.gap
        widest = max(text_width(self.across[column], 11) for column in columns)
        if widest <= room:
            for place, column in enumerate(columns):
                drawing.text(left + place * room + self.width / 2, y, self.across[column], size=11, anchor="middle")
            return
        step = math.ceil((widest + 6) / room)
        for place in range(0, len(columns), step):
            text = self.across[columns[place]]
            most = max(3, int((room * min(step, len(columns) - place) + 4) / 6.6))
            drawing.text(left + place * room, y, clip(text, most), size=11)
