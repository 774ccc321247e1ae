"""Clusters to draw, and what every picture must keep."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

from hypothesis import strategies as st
from wcwidth import wcswidth

from dtensor_magic.state import ClientState, ClusterPhase, ClusterState, DeviceState, MeshState, Phase

#: Dimensions and clients: from one device to 512, square and odd, one client with many devices and many with one.
MESHES = [
    ({"x": 1, "y": 1}, 1),
    ({"batch": 1}, 1),
    ({"batch": 4}, 4),
    ({"batch": 2, "model": 2}, 2),
    ({"batch": 4, "model": 2}, 2),
    ({"batch": 3, "model": 5}, 5),
    ({"x": 1, "y": 7}, 1),
    ({"x": 7, "y": 1}, 7),
    ({"batch": 64}, 1),
    ({"batch": 8, "model": 8}, 8),
    ({"batch": 512, "model": 1}, 512),
    ({"batch": 512}, 64),
    ({"a": 2, "b": 2, "c": 4}, 4),
    ({"stage": 8, "batch": 8, "model": 8}, 64),
    ({"stage": 8, "batch": 8, "model": 8}, 1),
    ({"a": 2, "b": 2, "c": 2, "d": 3}, 2),
]
HOSTILE = (
    "<script>alert(1)</script>",
    "\"'&]]>",
    "🧪👩‍👩‍👧",
    "e\u0301\u0301 \u202e",
    "\x00\x1b[31m\n\t",
    "漢字" * 30,
    "\ud800\uffff",
)
NOW = 1000.0

# Box-drawing characters would be taken for parts of our own boxes.
_words = st.text(st.characters(exclude_characters=map(chr, range(0x2500, 0x2580))), max_size=40)
hostile_text = st.one_of(st.sampled_from(HOSTILE), _words)


def cluster(dims, clients=1, *, name="mesh", phases=(), memory=False, devices=()):
    mesh = MeshState(name, dict(dims), "CPU", list(devices))
    each = math.prod(dims.values()) // clients
    return ClusterState(
        "demo",
        "multi-client",
        "CPU",
        ClusterPhase.READY,
        [mesh],
        [
            ClientState(
                client,
                phase=phases[client] if client < len(phases) else Phase.READY,
                pss=400_000_000 + client * 1_000_000,
                devices=[
                    DeviceState(
                        f"/job:worker/replica:0/task:{client}/device:CPU:{local}",
                        client * each + local,
                        "CPU",
                        memory_used=3_000_000_000 if memory else None,
                        memory_limit=16_000_000_000 if memory else None,
                    )
                    for local in range(each)
                ],
            )
            for client in range(clients)
        ],
    )


def parse(svg, *, themed):
    """Return the root of an SVG that has what every one of ours has."""
    root = ET.fromstring(svg)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "g", "rect", "text", "path"}
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert [child.tag.rpartition("}")[2] for child in root][:2] == ["title", "desc"]
    assert all(child.text for child in list(root)[:2])
    assert [float(part) for part in root.get("viewBox").split()][2:] == [
        float(root.get("width")),
        float(root.get("height")),
    ]
    assert not any(name in element.attrib for element in root.iter() for name in ("id", "href", "onload", "class"))
    if themed:
        assert "#ffffff" not in svg
    else:
        assert "var(" not in svg
        assert "style=" not in svg
    return root


def tooltips(root):
    return [
        title.text
        for group in root.iter("{http://www.w3.org/2000/svg}g")
        for title in group
        if title.tag.endswith("title")
    ]


def inside(root):
    """Assert that everything lies within the picture."""
    right, bottom = float(root.get("width")), float(root.get("height"))

    def walk(node, x, y):
        move = node.get("transform")
        if move:
            left, top = (float(part) for part in move.removeprefix("translate(").removesuffix(")").split())
            x, y = x + left, y + top
        if node.tag.endswith("}text") or node.tag.endswith("}rect"):
            assert 0 <= x + float(node.get("x")) <= right
            assert 0 <= y + float(node.get("y")) <= bottom
        if node.tag.endswith("}text") and not node.get("text-anchor"):
            # Common fonts take half their size a character and more.
            assert (
                x + float(node.get("x")) + 0.52 * float(node.get("font-size")) * wcswidth(node.text or "") <= right
            )
        for child in node:
            walk(child, x, y)

    walk(root, 0.0, 0.0)


def spread(line):
    """Return the characters of a line by the column that each begins in."""
    found, at = {}, 0
    for position, character in enumerate(line):
        at = wcswidth(line[:position])
        found.setdefault(at, character)
    return found


def check_text(text, width=80):
    """Assert that no line is too wide and that every box closes where it opened."""
    lines = text.split("\n")
    for line in lines:
        assert 0 <= wcswidth(line) <= width, line
        assert line == line.rstrip()
    grid = [spread(line) for line in lines]
    for row, line in enumerate(grid):
        for column, character in line.items():
            for opening, between, closing in (("┌", "│├", "└"), ("┐", "│┤", "┘"), ("┬", "│┼", "┴")):
                if character != opening:
                    continue
                for below in grid[row + 1 :]:
                    assert below.get(column) in (*between, closing)
                    if below[column] == closing:
                        break
                else:
                    raise AssertionError("a box is not closed")
