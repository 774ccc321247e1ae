"""Text in a terminal's columns: how wide it shows, cut to fit, in tables, boxes and side by side."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence

from wcwidth import wcswidth

#: Left-to-right marks and their kin: they would reorder what stands beside them.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SPACES = frozenset("\t\n\v\f\r\u0085\u2028\u2029")
_UNSHOWN = frozenset({"Cc", "Cs", "Cn", "Co"})


def clean(text: str) -> str:
    """Replace what neither a terminal nor XML can show: line ends by spaces, control characters by a sign."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_clean(character) for character in text)


def _clean(character: str) -> str:
    if character in _SPACES:
        return " "
    return "\ufffd" if character in _BIDI or unicodedata.category(character) in _UNSHOWN else character


def columns(text: str) -> int:
    """Return how many columns cleaned text takes."""
    return len(text) if text.isascii() else max(0, wcswidth(text))


def clip(text: str, limit: int) -> str:
    """Return cleaned text that takes at most `limit` columns, with an ellipsis where it was cut."""
    text = clean(text)
    if columns(text) <= limit:
        return text
    if limit < 1:
        return ""
    end = min(len(text), limit - 1)
    while end < len(text) and columns(text[: end + 1]) < limit:
        end += 1
    while columns(text[:end]) >= limit:
        end -= 1
    return text[:end].rstrip("\u200d") + "…"


def pad(text: str, size: int, side: str = "<") -> str:
    """Fill cleaned text with spaces to `size` columns; `side` is where it then stands, as in format strings."""
    room = max(0, size - columns(text))
    left = {"<": 0, ">": room, "^": room // 2}[side]
    return " " * left + text + " " * (room - left)


def wrap(text: str, limit: int, indent: str = "  ", first: str = "") -> list[str]:
    """Break a sentence into lines of at most `limit` columns, indented by `first` and then by `indent`."""
    lines: list[str] = []
    line = first
    for word in clean(text).split():
        longer = f"{line} {word}" if line.strip() else line + word
        if columns(longer) <= limit:
            line = longer
            continue
        if line.strip():
            lines.append(line)
        line = clip(indent + word, limit)
    return [*lines, line]


def table(rows: Iterable[Sequence[str]], limit: int | None = None) -> list[str]:
    """Set out rows in columns, cutting the widest ones until a line fits into `limit`."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(columns(row[column]) for row in cells) for column in range(len(cells[0]))]
    while limit is not None and sum(widths) + 2 * (len(widths) - 1) > limit and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return [
        "  ".join(pad(clip(cell, size), size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def beside(blocks: Sequence[Sequence[str]], limit: int, gap: int = 3) -> list[str]:
    """Set blocks of lines side by side, as many as fit into `limit`, the rest below."""
    lines: list[str] = []
    row: list[Sequence[str]] = []
    used = 0
    for block in blocks:
        size = max(columns(line) for line in block)
        if row and used + gap + size > limit:
            lines += [*_joined(row, gap), ""]
            row, used = [], 0
        used += size + (gap if row else 0)
        row.append(block)
    return lines + _joined(row, gap)


def _joined(blocks: Sequence[Sequence[str]], gap: int) -> list[str]:
    widths = [max(columns(line) for line in block) for block in blocks]
    height = max((len(block) for block in blocks), default=0)
    return [
        (" " * gap)
        .join(pad(block[row] if row < len(block) else "", size) for block, size in zip(blocks, widths, strict=True))
        .rstrip()
        for row in range(height)
    ]


def boxes(
    cells: Sequence[Sequence[Sequence[str]]],
    *,
    rows: Sequence[str],
    across: Sequence[str],
    corner: str = "",
    over: str = "",
    limit: int = 80,
    compact: bool = False,
) -> list[str]:
    """Draw a grid of boxes with labels; where it is wider than `limit`, its right part comes below its left.

    Parameters
    ----------
    cells : sequence of sequence of sequence of str
        Lines by row and column.
    rows, across : sequence of str
        A label per row and per column.
    corner, over : str
        What the rows' and the columns' labels count.
    limit : int
        Columns that a line may take.
    compact : bool
        One box around all, no lines between the cells.
    """
    sides = [clip(label, _LONGEST_LABEL) for label in rows]
    corner = clip(corner, _LONGEST_LABEL)
    margin = max(columns(text) for text in (corner, *sides))
    if compact and len(cells) == 1:
        margin = max(margin, *(columns(clip(label, _LONGEST_LABEL)) for label in across))
    inner = max((columns(clean(line)) for row in cells for cell in row for line in cell), default=1)
    if not compact:
        inner = max(inner, *(min(columns(clean(label)), _LONGEST_LABEL) for label in across))
    inner = max(1, min(inner, limit - margin - 3))
    most = max(1, (limit - margin - 2) // (inner + 1))
    if compact and len(cells) == 1 and len(across) > most:
        sides = [clip(across[first], _LONGEST_LABEL) for first in range(0, len(across), most)]
        folded = [cells[0][first : first + most] for first in range(0, len(across), most)]
        folded[-1] = [*folded[-1], *([""] for _ in range(most - len(folded[-1])))]
        head = [row for row in (f"{corner} {rows[0]}".strip(), over) if row]
        return [*head, *boxes(folded, rows=sides, across=[""] * most, limit=limit, compact=True)]
    lines: list[str] = []
    for first in range(0, len(across), most):
        here = slice(first, first + most)
        band = [row[here] for row in cells]
        count = len(across[here])
        blank = " " * (margin + 1)
        lines.append(blank + " " + clip(over, limit - margin - 2) if over else "")
        lines.append(pad(corner, margin) + " " + _labels(across[here], inner))
        lines.append(blank + _edge("┌", "─" if compact else "┬", "┐", count, inner))
        for position, (label, row) in enumerate(zip(sides, band, strict=True)):
            if position and not compact:
                lines.append(blank + _edge("├", "┼", "┤", count, inner))
            lines += _row(pad(label, margin, ">"), row, inner, " " if compact else "│")
        lines.append(blank + _edge("└", "─" if compact else "┴", "┘", count, inner))
    return [line.rstrip() for line in lines if line.strip()]


_LONGEST_LABEL = 18


def _edge(first: str, between: str, last: str, count: int, inner: int) -> str:
    return first + between.join(["─" * inner] * count) + last


def _row(label: str, cells: Sequence[Sequence[str]], inner: int, between: str) -> list[str]:
    height = max(len(cell) for cell in cells)
    lines = []
    for line in range(height):
        shown = [pad(clip(cell[line] if line < len(cell) else "", inner), inner) for cell in cells]
        margin = label if line == (height - 1) // 2 else " " * columns(label)
        lines.append(f"{margin} │{between.join(shown)}│")
    return lines


def _labels(labels: Sequence[str], inner: int) -> str:
    """Set labels over their columns; where they are wider than a column, only every second, third ... is shown."""
    widest = max(columns(clean(label)) for label in labels)
    step = 1 if widest <= inner else math.ceil((widest + 1) / (inner + 1))
    line = " "
    for position in range(0, len(labels), step):
        room = inner if step == 1 else step * (inner + 1) - 1
        side = "^" if step == 1 else "<"
        line += pad(clip(labels[position], max(room, 1)), room, side) + " "
    return line
