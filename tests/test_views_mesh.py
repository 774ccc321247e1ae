"""The mesh picture shows every device in its place, from one to hundreds, and what stands out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import HOSTILE, MESHES, check_text, cluster, hostile_text, inside, parse, tooltips

from dtensor_magic.state import MeshState, Phase
from dtensor_magic.views import mesh as picture
from dtensor_magic.views.places import device_ids, grids

meshes = pytest.mark.parametrize(("dims", "clients"), MESHES, ids=lambda value: str(value).replace(" ", ""))


@meshes
@pytest.mark.parametrize("themed", [False, True])
def test_the_svg_shows_every_device_once_with_its_client(dims, clients, themed):
    state = cluster(dims, clients)
    root = parse(picture.svg(state, state.meshes[0], themed=themed), themed=themed)
    inside(root)
    found = [re.match(r"CPU (\d+), client (\d+), ready", tooltip).groups() for tooltip in tooltips(root)]
    count = state.meshes[0].size
    assert sorted((int(device), int(client)) for device, client in found) == [
        (device, device * clients // count) for device in range(count)
    ]


@meshes
def test_the_text_shows_every_device_once_within_80_columns(dims, clients):
    state = cluster(dims, clients)
    text = picture.text(state, state.meshes[0])
    check_text(text)
    count = state.meshes[0].size
    cells = "\n".join(line for line in text.split("\n") if "│" in line)
    if "│ CPU" in cells:
        assert sorted(map(int, re.findall(r"CPU (\d+)", cells))) == list(range(count))
    elif re.search(r"\bc\d", cells):
        assert sorted(map(int, re.findall(r"(\d+) +✓", cells))) == list(range(count))
    else:
        assert len(re.findall(r"✓\d+", cells)) == count


@meshes
def test_grids_hold_the_devices_by_row_and_column(dims, clients):
    mesh = MeshState("mesh", dims, "CPU")
    shown = grids(mesh)
    by_place = {tuple(place.items()): device for device, place in mesh.places()}
    for grid in shown:
        fixed = [
            (name, int(index))
            for name, _, index in (part.partition("=") for part in grid.title.split(", ") if part)
        ]
        for row, devices in enumerate(grid.devices):
            for column, device in enumerate(devices):
                at = (
                    dict(fixed)
                    | ({grid.down: row} if grid.down else {})
                    | ({grid.over: column} if grid.over else {})
                )
                assert by_place[tuple((name, at[name]) for name in dims)] == device
    assert sum(len(row) for grid in shown for row in grid.devices) == mesh.size


def test_a_mesh_in_an_order_of_its_own_is_drawn_in_that_order():
    state = cluster({"batch": 2, "model": 2}, 2, devices=[3, 1, 0, 2])
    lines = picture.text(state, state.meshes[0]).split("\n")
    assert [re.findall(r"CPU (\d)", line) for line in lines if "CPU " in line and "│" in line] == [
        ["3", "1"],
        ["0", "2"],
    ]


@pytest.mark.parametrize("dims", [{"batch": 4}, {"batch": 64}, {"batch": 256}])
def test_dead_and_waiting_clients_stand_out_by_sign_and_words(dims):
    state = cluster(dims, 4, phases=[Phase.BUSY, Phase.WAITING, Phase.DEAD, Phase.FAILED])
    state.clients[2].exit = "was killed by SIGKILL"
    state.clients[3].error = "Traceback\nValueError: no such device"
    text = picture.text(state, state.meshes[0])
    assert "✗ client 2 is dead: was killed by SIGKILL" in text
    assert "✗ client 3 failed: ValueError: no such device" in text
    assert "‖ client 1 waits in a collective" in text
    root = parse(picture.svg(state, state.meshes[0]), themed=False)
    assert "client 2 is dead: was killed by SIGKILL" in root[1].text
    assert "client 0 busy; client 1 waiting; client 2 dead; client 3 failed" in root[1].text


def test_memory_is_the_devices_where_they_tell_and_else_the_clients_once():
    told = cluster({"batch": 2}, 1, memory=True)
    assert picture.text(told, told.meshes[0]).count("3.0 / 16.0 GB") == 2
    untold = cluster({"batch": 2}, 1)
    assert picture.text(untold, untold.meshes[0]).count("400 MB, client") == 1


def test_devices_that_no_client_has_told_of_are_drawn_too():
    state = cluster({"batch": 4}, 2)
    state.clients[1].devices = []
    assert "no client has told of devices 2-3 yet" in picture.text(state, state.meshes[0])
    titles = tooltips(parse(picture.svg(state, state.meshes[0]), themed=False))
    assert [title for title in titles if "no client" in title] == ["CPU 2, no client", "CPU 3, no client"]


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(hostile_text, min_size=3, max_size=3, unique=True), said=hostile_text, width=st.integers(40, 100)
)
def test_hostile_names_neither_break_the_markup_nor_the_boxes(names, said, width):
    state = cluster(dict.fromkeys(names, 2), 2, name=names[0], phases=[Phase.DEAD])
    state.clients[0].exit = said
    state.clients[1].host = said
    for themed in (False, True):
        parse(picture.svg(state, state.meshes[0], themed=themed), themed=themed)
    check_text(picture.text(state, state.meshes[0], width=width), width)


@pytest.mark.parametrize("name", HOSTILE)
def test_markup_in_a_name_is_shown_as_it_is_written(name):
    state = cluster({name: 2})
    assert "<script>" not in picture.svg(state, state.meshes[0], themed=True)


@given(st.sets(st.integers(0, 600), min_size=1))
def test_device_ids_start_with_the_first_and_end_with_the_last(ids):
    text = device_ids(ids)
    assert re.match(r"\d+", text).group() == str(min(ids))
    assert re.search(r"\d+$", text).group() == str(max(ids))
