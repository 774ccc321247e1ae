"""A DTensor cut for drawing: which two axes make the rectangle, and which devices hold each piece of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ...variables import HeatState, Range, VariableState, same_parts


@dataclass(frozen=True)
class Panel:
    """A rectangle of a tensor: two of its axes, at one place in the others.

    Attributes
    ----------
    title : str
        The place in the other axes that are cut: ``axis 0: 0:4``; empty where there are none.
    rows, across : list of (int, int)
        Ranges in the axis that runs down and in the one that runs across; ``(0, 1)`` where there is no axis.
    parts : list of list of tuple
        The ranges in every axis, by row and column.
    """

    title: str
    rows: list[Range]
    across: list[Range]
    parts: list[list[tuple[Range, ...]]]


@dataclass(frozen=True)
class Cut:
    """A tensor, cut for drawing.

    Attributes
    ----------
    down, over : int or None
        The axes drawn.
    panels : list of Panel
    holders : dict of tuple to list of int
        Global ids of the devices that hold each part.
    """

    down: int | None
    over: int | None
    panels: list[Panel]
    holders: dict[tuple[Range, ...], list[int]]

    @property
    def most(self) -> int:
        """The most columns that a panel has."""
        return max(len(panel.across) for panel in self.panels)


def cut(variable: VariableState) -> Cut:
    """Cut a DTensor.

    The rectangle is the last two axes that are sharded, or the last two of all where its values are shown (their
    grids are of those) or fewer are sharded. Other axes that are sharded make a panel for each of their parts.
    """
    holders = same_parts(variable)
    rank = len(variable.shape or ())
    by_axis: list[list[Range]] = [sorted({part[axis] for part in holders}) for axis in range(rank)]
    down, over = _drawn(by_axis, with_values=bool(variable.heat))
    others = [axis for axis in range(rank) if axis not in (down, over)]
    panels = []
    for place in itertools.product(*(by_axis[axis] for axis in others)):
        at: dict[int | None, Range] = dict(zip(others, place, strict=True))
        rows = [(0, 1)] if down is None else by_axis[down]
        across = [(0, 1)] if over is None else by_axis[over]
        parts = [[_part(rank, {**at, down: row, over: column}) for column in across] for row in rows]
        cut_axes = [axis for axis in others if len(by_axis[axis]) > 1]
        title = ", ".join(f"axis {axis}: {range_text(at[axis])}" for axis in cut_axes)
        panels.append(Panel(title, rows, across, parts))
    return Cut(down, over, panels, holders)


def _drawn(by_axis: Sequence[Sequence[Range]], *, with_values: bool) -> tuple[int | None, int | None]:
    rank = len(by_axis)
    sharded = [axis for axis in range(rank) if len(by_axis[axis]) > 1]
    chosen = list(range(rank))[-2:] if with_values else sharded[-2:]
    for axis in reversed(range(rank)):
        if len(chosen) < min(2, rank) and axis not in chosen:
            chosen.append(axis)
    drawn = [None, None, *sorted(chosen)][-2:]
    return drawn[0], drawn[1]


def _part(rank: int, ranges: dict[int | None, Range]) -> tuple[Range, ...]:
    return tuple(ranges[axis] for axis in range(rank))


def range_text(part: Range) -> str:
    """Write a range as a slice: ``4:8``."""
    return f"{part[0]}:{part[1]}"


def slice_text(part: Sequence[Range]) -> str:
    """Write a part as an index: ``[0:4, 2:4]``."""
    return f"[{', '.join(map(range_text, part))}]"


def axis_name(variable: VariableState, axis: int | None) -> str:
    """Name an axis: its number, its size and what it is sharded over; empty for None."""
    if axis is None or variable.shape is None or variable.specs is None:
        return ""
    spec = variable.specs[axis]
    over = f" over {spec}" if variable.mesh is not None and spec in variable.mesh.dims else ""
    return f"axis {axis} ({variable.shape[axis]}){over}"


def heat_of(variable: VariableState, part: Sequence[Range]) -> HeatState | None:
    """Return the values that are known of a part."""
    return next((heat for heat in variable.heat if list(heat.ranges) == list(part)), None)


def heat_scale(variable: VariableState) -> tuple[float, float]:
    """Return the least and the greatest block mean of all known parts: what the shades span."""
    means = [value for heat in variable.heat for row in heat.grid for value in row if value is not None]
    return (min(means), max(means)) if means else (0.0, 0.0)


def shade(value: float, scale: tuple[float, float]) -> float:
    """Return where a value lies in the scale, 0 to 1."""
    low, high = scale
    return 0.5 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))
