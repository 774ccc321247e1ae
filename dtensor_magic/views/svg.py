"""SVG in two looks: alone on a light card, or inside a page in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from xml.etree import ElementTree as ET

from .columns import clean, columns

#: Okabe and Ito's colours, which colour-blind people tell apart; the yellow is darker, to show on white.
_TINTS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#8a6fd1")
NEUTRAL = "#8c959f"

_ALONE = {"ink": "#1f2328", "muted": "#57606a", "line": "#afb8c1", "alarm": "#b3261e", "work": "#0072b2"}
_INK = "var(--jp-ui-font-color1, var(--vscode-foreground, var(--colab-primary-text-color, currentColor)))"
_ALARM = "var(--jp-error-color1, var(--vscode-errorForeground, #e5534b))"
_THEMED = {"ink": _INK, "muted": _INK, "line": _INK, "alarm": _ALARM, "work": "#3d8fd1"}
#: A page has one colour of text: what stands back shows it through.
_FADED = {"muted": 0.75, "line": 0.35}

_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_MARGIN = 14.0


def tint(client: int | None) -> str:
    """Return a client's colour; there are eight, so that labels must tell clients apart."""
    return NEUTRAL if client is None else _TINTS[client % len(_TINTS)]


def text_width(text: str, size: float = 12) -> float:
    """Return about how wide text shows, rather too much than too little: its font is the page's."""
    return columns(clean(text)) * size * 0.6


class Drawing:
    """An SVG in the making; what is drawn goes into the innermost open group."""

    def __init__(self, *, themed: bool) -> None:
        self._themed = themed
        self._root = self._node = ET.Element("g", self._paint(fill="ink"))

    @contextmanager
    def group(self, tooltip: str = "", x: float = 0, y: float = 0) -> Iterator[ET.Element]:
        """Open a group at a place of its own, with a tooltip."""
        outer = self._node
        self._node = ET.SubElement(outer, "g")
        if x or y:
            move(self._node, x, y)
        if tooltip:
            ET.SubElement(self._node, "title").text = clean(tooltip)
        try:
            yield self._node
        finally:
            self._node = outer

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        ink: str = "ink",
        bold: bool = False,
        anchor: str = "",
    ) -> None:
        """Write a line whose baseline is at `y`; `anchor` is ``middle`` or ``end`` where not at its start."""
        attributes = {"x": _number(x), "y": _number(y), "font-size": _number(size)}
        if ink != "ink":  # which is the whole picture's
            attributes |= self._paint(fill=ink)
        if bold:
            attributes["font-weight"] = "600"
        if anchor:
            attributes["text-anchor"] = anchor
        ET.SubElement(self._node, "text", attributes).text = clean(text)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        opacity: float = 1,
        stroke: str = "none",
        thick: float = 1,
        dash: str = "",
        radius: float = 0,
    ) -> None:
        """Draw a rectangle; `opacity` is its filling's."""
        attributes = {"x": _number(x), "y": _number(y), "width": _number(width), "height": _number(height)}
        attributes |= self._paint(fill=fill, stroke=stroke, opacity=opacity)
        if radius:
            attributes["rx"] = _number(radius)
        if stroke != "none" and thick != 1:
            attributes["stroke-width"] = _number(thick)
        if dash:
            attributes["stroke-dasharray"] = dash
        ET.SubElement(self._node, "rect", attributes)

    def path(self, data: str, *, fill: str = "none", stroke: str = "none", thick: float = 1) -> None:
        """Draw a path."""
        attributes = {"d": data, **self._paint(fill=fill, stroke=stroke)}
        if stroke != "none":
            attributes |= {"stroke-width": _number(thick), "stroke-linecap": "round", "stroke-linejoin": "round"}
        ET.SubElement(self._node, "path", attributes)

    def hatch(
        self, x: float, y: float, width: float, height: float, *, stroke: str = "ink", step: float = 4
    ) -> None:
        """Draw upright lines over a rectangle; a pattern's id could clash with another picture's in the page."""
        steps = range(1, max(2, math.ceil(width / step)))
        lines = (min(x + position * step, x + width) for position in steps)
        self.path("".join(f"M{_number(at)} {_number(y)}v{_number(height)}" for at in lines), stroke=stroke)

    def icon(self, name: str, x: float, y: float, size: float = 10) -> None:
        """Draw a sign of :data:`ICONS` into a square: paths, because not every font has these characters."""
        shape, filled, ink = ICONS[name]
        points = [
            part if part.isalpha() else _number(float(part) * size + (x if axis % 2 == 0 else y))
            for axis, part in _with_axes(shape)
        ]
        if filled:
            self.path(" ".join(points), fill=ink)
        else:
            self.path(" ".join(points), stroke=ink, thick=size * 0.2)

    def _paint(self, *, fill: str = "none", stroke: str = "none", opacity: float = 1) -> dict[str, str]:
        named = _THEMED if self._themed else _ALONE
        attributes: dict[str, str] = {}
        styles = []
        for what, colour in (("fill", fill), ("stroke", stroke)):
            if what == "stroke" and colour == "none":
                continue
            value = named.get(colour, colour)
            if value.startswith("var("):
                styles.append(f"{what}:{value}")
            else:
                attributes[what] = value
            shown = (opacity if what == "fill" else 1) * (_FADED.get(colour, 1) if self._themed else 1)
            if shown != 1 and colour != "none":
                attributes[f"{what}-opacity"] = _number(shown)
        if styles:
            attributes["style"] = ";".join(styles)
        return attributes

    def finish(self, label: str, description: str, width: float, height: float) -> str:
        """Return the SVG of what was drawn from (0, 0) to (`width`, `height`), with what it shows in words."""
        full = (math.ceil(width + 2 * _MARGIN), math.ceil(height + 2 * _MARGIN))
        label, description = clean(label), clean(description)
        svg = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {full[0]} {full[1]}",
                "width": str(full[0]),
                "height": str(full[1]),
                "role": "img",
                # Screen readers take the label of an inlined picture, and not always its description.
                "aria-label": f"{label}. {description}",
                "font-family": f"var(--jp-ui-font-family, {_FONTS})" if self._themed else _FONTS,
            },
        )
        ET.SubElement(svg, "title").text = label
        ET.SubElement(svg, "desc").text = description
        if self._themed:
            svg.set("style", f"max-width:100%;height:auto;font-family:{svg.attrib.pop('font-family')}")
        else:
            card = {"x": "0.5", "y": "0.5", "width": str(full[0] - 1), "height": str(full[1] - 1), "rx": "6"}
            ET.SubElement(svg, "rect", {**card, "fill": "#ffffff", "stroke": "#d0d7de"})
        move(self._root, _MARGIN, _MARGIN)
        svg.append(self._root)
        return ET.tostring(svg, encoding="unicode")


#: By name: a path in a unit square, whether it is filled, and its colour.
ICONS = {
    "done": ("M 0.12 0.55 L 0.4 0.82 L 0.9 0.2", False, "ink"),
    "failed": ("M 0.18 0.18 L 0.82 0.82 M 0.82 0.18 L 0.18 0.82", False, "alarm"),
    "running": ("M 0.2 0.08 L 0.92 0.5 L 0.2 0.92 Z", True, "ink"),
    "waiting": ("M 0.3 0.12 L 0.3 0.88 M 0.7 0.12 L 0.7 0.88", False, "ink"),
    "interrupted": ("M 0.14 0.14 L 0.86 0.14 L 0.86 0.86 L 0.14 0.86 Z", True, "ink"),
    "starting": ("M 0.15 0.8 L 0.15 0.8 M 0.5 0.8 L 0.5 0.8 M 0.85 0.8 L 0.85 0.8", False, "ink"),
    "differs": ("M 0.5 0.08 L 0.96 0.9 L 0.04 0.9 Z M 0.5 0.4 L 0.5 0.6", False, "alarm"),
    "died": ("M 0.5 0.05 L 0.95 0.5 L 0.5 0.95 L 0.05 0.5 Z M 0.3 0.5 L 0.7 0.5", False, "alarm"),
}


def _with_axes(shape: str) -> Iterator[tuple[int, str]]:
    axis = 0
    for part in shape.split():
        yield axis, part
        axis = axis + 1 if not part.isalpha() else 0


def move(node: ET.Element, x: float, y: float) -> None:
    """Put a group at a place."""
    node.set("transform", f"translate({_number(x)} {_number(y)})")


def flow(
    blocks: Sequence[tuple[ET.Element, float, float]], *, limit: float, top: float, gap: float
) -> tuple[float, float]:
    """Set groups of known width and height side by side from `top` down; return the right end and the bottom."""
    x, y, right, bottom = 0.0, top, 0.0, top
    for node, width, height in blocks:
        if x and x + width > limit:
            x, y = 0.0, bottom + gap
        move(node, x, y)
        right, bottom = max(right, x + width), max(bottom, y + height)
        x += width + gap
    return right, bottom


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if not float(value).is_integer() else str(int(value))
