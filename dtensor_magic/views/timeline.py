"""The last cells as bars, client by client: who worked, who waited, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from ..state import ClusterState
from . import columns
from .rounds import Round, Row, duration, rounds, rows, spells, who_waited
from .svg import Drawing, text_width

_OUTCOMES = {
    "running": ("running", "▶"),
    "done": ("done", "✓"),
    "failed": ("failed", "✗"),
    "interrupted": ("interrupted", "■"),
    "died": ("died", "◆"),
}
_NONE = "no cell has run on the clients yet"
_LIMIT = 1060.0
_MOST_CELLS = 6
_MOST_ROWS = 24
_COLUMN = 170.0
#: Room behind a bar for how it ended, in words.
_ENDING = 80.0
#: A bar shows as many times at most.
_STEPS = 80


def svg(state: ClusterState, now: float, *, themed: bool = False) -> str:
    """Return the picture as SVG.

    Parameters
    ----------
    state : ClusterState
    now : float
        Seconds since the epoch: where running cells end.
    themed : bool
        In the page's own colours, to be inlined in HTML; else alone, on a light card.
    """
    drawing = Drawing(themed=themed)
    every = rounds(state, now)
    title = f"{state.name}: last cells"
    drawing.text(0, 12, title, size=13, bold=True)
    if not every:
        drawing.text(0, 34, _NONE, ink="muted")
        return drawing.finish(title, _NONE, max(text_width(title, 13), text_width(_NONE)), 40)
    cells = every[-_MOST_CELLS:]
    shown = rows(state, cells, now, most=_MOST_ROWS)
    labels = [columns.clip(f"client{'s' * (len(row.clients) > 1)} {row.label}", 22) for row in shown]
    left = max(text_width(label, 11) for label in labels) + 12
    tall = 22.0 if len(shown) <= _MOST_ROWS else 15.0
    width = max(_COLUMN, min(360.0, (_LIMIT - left) / len(cells)))
    for number, cell in enumerate(cells):
        with drawing.group(f"{cell.text}: {duration(cell.seconds)}", left + number * width, 26):
            drawing.text(0, 11, columns.clip(cell.text, int((width - 14) / 6.4)), size=11, bold=True)
            drawing.text(0, 26, _time(cell), size=11, ink="muted")
            drawing.box(0, 33, width - 14, 0.6, fill="line")
    top = 66.0
    for place, (row, label) in enumerate(zip(shown, labels, strict=True)):
        y = top + place * tall
        drawing.text(0, y + tall / 2 + 4, label, size=11)
        for number, cell in enumerate(cells):
            with drawing.group(_tooltip(cell, row, label), left + number * width, y):
                _bar(drawing, cell, row, now, width - 14, tall)
    bottom = top + len(shown) * tall + 8
    right = left + len(cells) * width - 14
    said = _said(state, every, cells, now)
    for line in said:
        drawing.text(0, bottom + 11, line)
        right, bottom = max(right, text_width(line)), bottom + 17
    right = max(right, _legend(drawing, bottom + 6))
    description = ". ".join([*said, *(_in_words(cell) for cell in cells)])
    return drawing.finish(title, description, right, bottom + 22)


def _bar(drawing: Drawing, cell: Round, row: Row, now: float, width: float, tall: float) -> None:
    span = cell.spans.get(row.client)
    high, y = tall - 8, 4.0
    if span is None:
        drawing.text(0, tall / 2 + 4, "not run", size=10, ink="muted")
        return
    step = (width - _ENDING) / _STEPS
    course = spells(cell, span, now, _STEPS)
    for first, last, waits in course:
        if waits:
            _waiting(drawing, first * step, y, (last - first) * step, high)
        else:
            drawing.box(first * step, y, (last - first) * step, high, fill="work")
    after = course[-1][1] * step + 5
    waits = bool(span.waits) and span.waits[-1][1] is None
    name = "waiting" if waits and span.outcome == "running" else span.outcome
    drawing.icon(name, after, tall / 2 - 5, 10)
    if name != "done":
        drawing.text(after + 14, tall / 2 + 4, name, size=10)


def _waiting(drawing: Drawing, x: float, y: float, width: float, height: float) -> None:
    drawing.box(x, y, width, height, fill="line", opacity=0.4, stroke="muted", thick=0.8)
    drawing.hatch(x, y, width, height, stroke="muted")


def _tooltip(cell: Round, row: Row, label: str) -> str:
    span = cell.spans.get(row.client)
    if span is None:
        return f"{label}: did not run {cell.text}"
    took = "" if span.end is None else f" after {duration(span.end - span.start)}"
    finished = [until - begin for begin, until in span.waits if until is not None]
    waits = f", waited {duration(sum(finished))} in collectives" if finished else ""
    return f"{label}, {span.cell}: {span.outcome}{took}{waits}"


def _legend(drawing: Drawing, y: float) -> float:
    drawing.box(0, y + 1, 20, 11, fill="work", radius=1)
    drawing.text(26, y + 11, "works", size=11)
    _waiting(drawing, 72, y + 1, 20, 11)
    drawing.text(98, y + 11, "waits in a collective", size=11)
    x = 98 + text_width("waits in a collective", 11) + 12
    for name, (word, _) in _OUTCOMES.items():
        drawing.icon(name, x, y + 1.5, 10)
        drawing.text(x + 15, y + 11, word, size=11)
        x += 15 + text_width(word, 11) + 12
    return x - 12


def _time(cell: Round) -> str:
    return f"{duration(cell.seconds)} so far" if cell.running else duration(cell.seconds)


def _in_words(cell: Round) -> str:
    outcomes: dict[str, int] = {}
    for span in cell.spans.values():
        outcomes[span.outcome] = outcomes.get(span.outcome, 0) + 1
    ends = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    return f"{columns.clip(cell.text, 60)}: {_time(cell)}, {ends}"


def _said(state: ClusterState, every: Sequence[Round], cells: Sequence[Round], now: float) -> list[str]:
    """Say who made whom wait, the last cell first, and how many cells are not shown."""
    ids = [client.id for client in state.clients]
    lines = []
    for cell in reversed(cells):
        lines += [f"{columns.clip(cell.text, 30)}: {line}" for line in who_waited(cell, ids, now)]
    hidden = len(every) - len(cells)
    return [*lines, *([f"{hidden} earlier cell{'s' * (hidden > 1)} not shown"] if hidden else [])]


def text(state: ClusterState, now: float, *, width: int = 80) -> str:
    """Return the picture as text.

    Parameters
    ----------
    state : ClusterState
    now : float
        Seconds since the epoch: where running cells end.
    width : int
        Columns of the terminal.
    """
    every = rounds(state, now)
    if not every:
        return columns.clip(f"{state.name}: {_NONE}", width)
    cells = every[-4:]
    shown = rows(state, cells, now, most=_MOST_ROWS)
    labels = ["client", *(columns.clip(row.label, 14) for row in shown)]
    margin = max(columns.columns(label) for label in labels)
    size = max(6, min(40, (width - margin) // len(cells) - 2))
    lines = [
        "  ".join(
            [columns.pad("client", margin), *(columns.pad(columns.clip(cell.text, size), size) for cell in cells)]
        ),
        "  ".join([" " * margin, *(columns.pad(columns.clip(_time(cell), size), size) for cell in cells)]),
    ]
    for row, label in zip(shown, labels[1:], strict=True):
        bars = [columns.pad(_line(cell, row, now, size), size) for cell in cells]
        lines.append("  ".join([columns.pad(label, margin, ">"), *bars]))
    lines = [columns.clip(line.rstrip(), width) for line in lines]
    for said in _said(state, every, cells, now):
        lines += columns.wrap(said, width)
    marks = "  ".join(f"{mark} {word}" for word, mark in _OUTCOMES.values())
    return "\n".join([*lines, *columns.wrap(f"█ works  ░ waits  {marks}", width)])


def _line(cell: Round, row: Row, now: float, size: int) -> str:
    """Draw a bar, and how it ended, in `size` columns."""
    span = cell.spans.get(row.client)
    if span is None:
        return columns.clip("not run", size)
    course = spells(cell, span, now, size - 1)
    bar = "".join(("░" if waits else "█") * (last - first) for first, last, waits in course)
    return " " * course[0][0] + bar + _OUTCOMES[span.outcome][1]
