"""The layout picture says which part of a tensor each device holds, as slices of NumPy would have it."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import MESHES, check_text, cluster, hostile_text, inside, parse, tooltips

from dtensor_magic.variables import UNSHARDED, HeatState, VariableState, same_parts, shards
from dtensor_magic.views import layout
from dtensor_magic.views.layout.pieces import cut

SHARE = re.compile(r"(\[[^\]]*\]): devices? ([\d, …-]+)(?: \(|$)")


def dtensor(state, shape, specs, name="w", parts=()):
    size = math.prod(shape) * 4
    return VariableState(name, "dtensor", "DVariable", list(shape), "float32", list(specs), state.meshes[0], size)


def slices(text):
    return tuple(slice(*map(int, part.split(":"))) for part in text.strip("[]").split(", ") if part)


def device_list(text):
    found = []
    for part in text.strip().split(", "):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


@st.composite
def layouts(draw):
    """A mesh of one to three dimensions and a tensor laid out on it in any way that DTensor allows."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dims = dict(zip(("batch", "model", "stage"), sizes, strict=False))
    rank = draw(st.integers(0, 4))
    free = draw(st.permutations(list(dims)))
    axes = draw(st.permutations(range(rank)))
    used = draw(st.integers(0, min(rank, len(free))))
    specs = [UNSHARDED] * rank
    for axis, name in zip(axes[:used], free, strict=False):
        specs[axis] = name
    shape = [draw(st.integers(1, 3)) * dims.get(spec, 1) for spec in specs]
    clients = draw(
        st.sampled_from([count for count in (1, 2, 3, math.prod(sizes)) if math.prod(sizes) % count == 0])
    )
    return cluster(dims, clients), shape, specs


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_the_ranges_drawn_are_the_parts_that_numpy_splits(case):
    state, shape, specs = case
    variable = dtensor(state, shape, specs)
    whole = np.arange(math.prod(shape)).reshape(shape)
    dims = state.meshes[0].dims
    root = parse(layout.svg([variable], state), themed=False)
    inside(root)
    drawn = {}
    seen = np.zeros(shape, int)
    for tooltip in tooltips(root):
        text, devices = SHARE.search(tooltip).groups()
        seen[slices(text)] += 1
        for device in same_parts(variable)[tuple((part.start, part.stop) for part in slices(text))]:
            drawn[device] = whole[slices(text)]
        if "…" not in devices:
            assert (
                device_list(devices)
                == same_parts(variable)[tuple((part.start, part.stop) for part in slices(text))]
            )
    assert (seen == 1).all()
    assert sorted(drawn) == list(range(state.meshes[0].size))
    for device, place in state.meshes[0].places():
        expected = whole
        for axis, spec in enumerate(specs):
            if spec in dims:
                expected = np.split(expected, dims[spec], axis)[place[spec]]
        assert np.array_equal(drawn[device], expected)


@settings(max_examples=100, deadline=None)
@given(layouts())
def test_the_text_lists_every_part_and_device_once_within_80_columns(case):
    state, shape, specs = case
    variable = dtensor(state, shape, specs)
    text = layout.text([variable], state)
    check_text(text)
    if "in the cells" in text:
        return
    cells = re.findall(r"(?:device|(\d+) devices:) ([\d, …-]*\d) ", text.split("\n", 1)[1].partition("│")[2])
    assert len(cells) == len(same_parts(variable))
    assert sum(int(count or 1) for count, _ in cells) == state.meshes[0].size


@settings(max_examples=100, deadline=None)
@given(layouts())
def test_a_tensor_is_cut_into_each_part_exactly_once(case):
    state, shape, specs = case
    variable = dtensor(state, shape, specs)
    drawn = cut(variable)
    parts = [part for panel in drawn.panels for row in panel.parts for part in row]
    assert sorted(parts) == sorted(same_parts(variable))
    assert sum(len(devices) for devices in drawn.holders.values()) == len(shards(variable))


@pytest.mark.parametrize(("dims", "clients"), MESHES, ids=lambda value: str(value).replace(" ", ""))
def test_every_mesh_draws_a_tensor_sharded_over_all_its_dimensions(dims, clients):
    state = cluster(dims, clients)
    variable = dtensor(state, [count * 2 for count in dims.values()], list(dims))
    for themed in (False, True):
        root = parse(layout.svg([variable], state, themed=themed), themed=themed)
        inside(root)
        assert len(tooltips(root)) == state.meshes[0].size
    check_text(layout.text([variable], state))


def test_replication_is_said_with_its_dimensions_and_copies():
    state = cluster({"batch": 4, "model": 2}, 2)
    text = layout.text([dtensor(state, (8, 4), ["batch", UNSHARDED])], state)
    assert "replicated over model: each part is on" in text
    assert "2 devices: 0-1" in text
    assert "32 B on each of 8 devices, 256 B in" in text
    scalar = layout.text([dtensor(state, (), [])], state)
    assert "a scalar" in scalar
    assert "replicated over batch and model" in scalar
    assert "8 devices: 0-7" in scalar


def test_devices_left_out_make_it_uneven():
    state = cluster({"batch": 2}, 1)
    state.clients += cluster({"batch": 4}, 2).clients[1:]
    text = " ".join(layout.text([dtensor(state, (4,), ["batch"])], state).split())
    assert "uneven: devices 0-1 hold 2 times the mean; nothing on devices 2-3" in text


def test_axes_that_are_not_drawn_are_told():
    state = cluster({"batch": 4, "model": 2}, 2)
    text = " ".join(layout.text([dtensor(state, (4, 3, 8), ["batch", UNSHARDED, "model"])], state).split())
    assert "not drawn, whole in every part: axis 1 (3)" in text
    assert "axis 0 (4) over batch" in text
    assert "axis 2 (8) over model" in text


def test_parts_over_three_dimensions_make_a_panel_each():
    state = cluster({"a": 2, "b": 2, "c": 2}, 2)
    text = layout.text([dtensor(state, (4, 4, 4), ["a", "b", "c"])], state)
    assert "axis 0: 0:2" in text
    assert "axis 0: 2:4" in text


def test_several_tensors_stand_side_by_side():
    state = cluster({"batch": 2}, 2)
    variables = [dtensor(state, (4,), ["batch"], "left"), dtensor(state, (), [], "right")]
    assert re.search(r"left: .* {3,}right: ", layout.text(variables, state))
    assert "right" in parse(layout.svg(variables, state), themed=False)[0].text


def test_what_has_no_layout_is_said_in_a_line():
    state = cluster({"batch": 2}, 2)
    mesh = state.meshes[0]
    variables = [
        VariableState("x", "tensor", "EagerTensor", [3], "float32", nbytes=12),
        VariableState("m", "mesh", "Mesh", mesh=mesh),
        VariableState("l", "layout", "Layout", specs=["batch"], mesh=mesh),
        VariableState("n", "value", "int", text="3"),
    ]
    for variable, words in zip(
        variables,
        (
            "every client has a copy of its own, 12 B",
            "a mesh: batch=2 of 2 CPU devices",
            "a layout: [batch] on batch=2",
            "no tensor: 3",
        ),
        strict=True,
    ):
        assert words in layout.text([variable])
        assert words in parse(layout.svg([variable]), themed=False)[1].text


def test_a_tensor_without_elements_is_drawn():
    state = cluster({"batch": 2}, 2)
    variable = dtensor(state, (0, 4), ["batch", UNSHARDED])
    assert "no elements" in layout.text([variable], state)
    parse(layout.svg([variable], state), themed=False)


def test_a_group_is_a_table_with_totals_by_device():
    state = cluster({"batch": 2, "model": 2}, 2)
    parts = [
        dtensor(state, (8, 4), [UNSHARDED, "model"], ".dense.kernel"),
        dtensor(state, (4,), ["model"], ".dense.bias"),
        VariableState("['rng']", "tensor", "EagerTensor", [2], "int64", nbytes=16),
    ]
    group = VariableState("model", "group", "Sequential", parts=parts)
    text = layout.text([group], state)
    check_text(text)
    assert re.search(r"\.dense\.kernel +\(8, 4\) +float32 +\[unsharded, model\] +128 B +64 B", text)
    assert "tensor, each client's own" in text
    assert "72 B a device, 288 B on all" in text
    root = parse(layout.svg([group], state), themed=False)
    assert [title.rpartition(": ")[2] for title in tooltips(root)] == ["72 bytes"] * 4


def test_a_long_group_says_how_much_more_there_is():
    state = cluster({"batch": 2}, 2)
    group = VariableState(
        "v", "group", "list", parts=[dtensor(state, (2,), ["batch"], f"[{place}]") for place in range(130)]
    )
    assert "and 30 more tensors, 240 B" in layout.text([group], state)


def test_values_are_drawn_where_they_lie():
    state = cluster({"batch": 2, "model": 2}, 2)
    variable = dtensor(state, (4, 4), ["batch", "model"])
    variable.heat = [HeatState([(2, 4), (0, 2)], [[0.0, 1.0], [0.25, None]], -2.0, 3.0)]
    text = layout.text([variable], state)
    check_text(text)
    boxes = [line for line in text.split("\n") if "│" in line]
    assert boxes[-2].split("│")[1].strip() == "██"
    assert "!!" in boxes[-1].split("│")[1]
    assert "█" not in "".join(boxes[:-2])
    said = " ".join(text.split())
    assert "values from -2 to 3; shades from 0 (blank) to 1 (full)" in said
    root = parse(layout.svg([variable], state), themed=False)
    assert "values from -2 to 3" in root[1].text
    assert (
        sum(rect.get("fill") in ("#fde725", "#440154") for rect in root.iter("{http://www.w3.org/2000/svg}rect"))
        == 2
    )


def test_values_of_three_axes_are_drawn_in_the_last_two():
    state = cluster({"batch": 2, "model": 2}, 2)
    variable = dtensor(state, (4, 4, 6), ["batch", "model", UNSHARDED])
    variable.heat = [HeatState(list(shard.ranges), [[1.0, 2.0]], 0.0, 3.0) for shard in shards(variable)]
    text = layout.text([variable], state)
    assert "axis 0: 2:4" in text
    assert text.count("██") == 4


@settings(max_examples=60, deadline=None)
@given(name=hostile_text, dim=hostile_text, kind=hostile_text)
def test_hostile_names_neither_break_the_markup_nor_the_boxes(name, dim, kind):
    state = cluster({dim: 2, dim + "2": 2}, 2)
    variable = dtensor(state, (4, 4), [dim, UNSHARDED], name)
    variable.type = kind
    group = VariableState(name, "group", kind, parts=[variable])
    plain = VariableState(name, "value", kind, text=dim)
    for themed in (False, True):
        parse(layout.svg([variable, group, plain], state, themed=themed), themed=themed)
    check_text(layout.text([variable, group, plain], state))
