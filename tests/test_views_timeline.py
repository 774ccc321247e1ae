"""The timeline shows one column a cell and one row a client, and says who made whom wait."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import check_text, cluster, hostile_text, inside, parse, tooltips

from dtensor_magic.state import CellSpan
from dtensor_magic.views import timeline
from dtensor_magic.views.rounds import duration, rounds, rows, spells, waited, who_waited


def history(clients, *cells):
    """Return a cluster whose clients ran cells; of each its text, and by client start, end, outcome and waits."""
    state = cluster({"batch": clients}, clients)
    for number, (text, spans) in enumerate(cells):
        for client, (start, end, outcome, waits) in spans.items():
            state.clients[client].cells.append(CellSpan(f"In[{number + 1}]", text, start, end, outcome, waits))
    return state


def said(state, now):
    return who_waited(rounds(state, now)[-1], [client.id for client in state.clients], now)


@st.composite
def histories(draw):
    """Clients that ran cells one after the other, with waits anywhere, as the driver and the clients would tell."""
    count = draw(st.integers(1, 5))
    state = cluster({"batch": count}, count)
    at = 10.0
    for number in range(draw(st.integers(0, 4))):
        last = at
        for client in draw(st.sets(st.integers(0, count - 1), min_size=1)):
            start = at + draw(st.floats(0, 0.05))
            marks = sorted(
                draw(st.lists(st.floats(0, 20), min_size=2, max_size=8).filter(lambda found: len(found) % 2 == 0))
            )
            end = start + marks[-1] + draw(st.floats(0, 2))
            waits = [(start + first, start + until) for first, until in zip(marks[::2], marks[1::2], strict=True)]
            outcome = draw(st.sampled_from(["done", "failed", "interrupted", "died"]))
            state.clients[client].cells.append(
                CellSpan(f"In[{number}]", f"cell {number}", start, end, outcome, waits)
            )
            last = max(last, end)
        at = last + 0.01
    if at > 10 and draw(st.booleans()):
        for client in state.clients:
            client.cells.append(
                CellSpan("In[9]", "now", at, None, "running", [(at + 1, None)] if client.id else [])
            )
    return state, at + 5


def test_overlapping_cells_of_the_clients_are_one_column():
    state = history(
        2,
        ("a", {0: (1, 2, "done", []), 1: (1.1, 2.2, "done", [])}),
        ("b", {1: (3, 4, "done", [])}),
        ("c", {0: (5, None, "running", []), 1: (5, 6, "done", [])}),
    )
    found = rounds(state, 8)
    assert [(cell.text, sorted(cell.spans), cell.running, cell.seconds) for cell in found] == [
        ("a", [0, 1], False, pytest.approx(1.2)),
        ("b", [1], False, 1),
        ("c", [0, 1], True, 3),
    ]


def test_a_client_that_hangs_in_a_cell_does_not_swallow_the_next_one():
    state = history(
        2,
        ("hangs", {0: (1, None, "running", []), 1: (1, 2, "done", [])}),
        ("next", {1: (3, 4, "done", [])}),
    )
    assert [cell.text for cell in rounds(state, 9)] == ["hangs", "next"]


def test_who_arrives_last_is_who_was_waited_for():
    waits = {client: (0, 10.1, "done", [(client + 1.0, 10 + client * 0.02)]) for client in range(3)}
    state = history(4, ("step()", {**waits, 3: (0, 10.1, "done", [])}))
    assert said(state, 20) == ["clients 0-2 waited 7.0 s to 9.0 s for client 3"]


def test_two_that_are_slow_alike_are_named_together():
    fast, slow = (0, 9, "done", [(1, 8)]), (0, 9, "done", [])
    state = history(4, ("step()", {0: fast, 1: slow, 2: slow, 3: fast}))
    assert said(state, 9) == ["clients 0, 3 waited 7.0 s for clients 1-2"]


def test_short_waits_are_no_news():
    state = history(2, ("step()", {0: (0, 1, "done", [(0.5, 0.55)]), 1: (0, 1, "done", [])}))
    assert said(state, 1) == []


def test_waits_in_many_steps_add_up():
    waits = [(step + 0.5, step + 0.9) for step in range(10)]
    state = history(2, ("train()", {0: (0, 10, "done", waits), 1: (0, 10, "done", [])}))
    assert said(state, 10) == ["client 0 waited 4.0 s for client 1"]


def test_who_failed_is_waited_for_until_the_others_are_interrupted():
    stopped = (0, 30, "interrupted", [(1, 30)])
    state = history(3, ("step()", {0: stopped, 1: stopped, 2: (0, 2, "failed", [])}))
    assert said(state, 40) == ["clients 0-1 waited 29.0 s for client 2, which failed"]


def test_who_did_not_get_the_cell_is_waited_for():
    hangs = (0, None, "running", [(1, None)])
    state = history(3, ("step()", {0: hangs, 1: hangs}))
    assert said(state, 6)[-1] == "clients 0-1 have waited 5.0 s for client 2, which did not run the cell"


def test_when_all_wait_nobody_is_blamed():
    state = history(2, ("step()", {0: (0, None, "running", [(1, None)]), 1: (0, None, "running", [(1.05, None)])}))
    assert said(state, 11.05) == ["all wait and none works, clients 0-1: for 10.0 s now"]


@settings(max_examples=100, deadline=None)
@given(histories())
def test_every_cell_is_in_one_column_and_no_one_waits_for_itself(case):
    state, now = case
    found = rounds(state, now)
    spans = [id(span) for cell in found for span in cell.spans.values()]
    assert sorted(spans) == sorted(id(span) for client in state.clients for span in client.cells)
    for cell in found:
        for item in waited(cell, range(len(state.clients)), now):
            assert not set(item.waiters) & set(item.blockers)
            for waiter in item.waiters:
                total = sum((now if until is None else until) - begin for begin, until in cell.spans[waiter].waits)
                assert item.least <= total + 1e-6
        for span in cell.spans.values():
            course = spells(cell, span, now, 40)
            assert 0 <= course[0][0] < course[-1][1] <= 40
            assert all(
                first[1] == second[0] and first[2] != second[2] for first, second in itertools.pairwise(course)
            )


@settings(max_examples=60, deadline=None)
@given(histories())
def test_both_forms_show_a_row_a_client(case):
    state, now = case
    text = timeline.text(state, now)
    check_text(text)
    for themed in (False, True):
        root = parse(timeline.svg(state, now, themed=themed), themed=themed)
        inside(root)
    if any(client.cells for client in state.clients):
        assert re.findall(r"^ {5}(\d)  ", text, re.MULTILINE) == [str(client.id) for client in state.clients]
        assert len(tooltips(root)) == min(6, len(rounds(state, now))) * (len(state.clients) + 1)


def test_outcomes_differ_in_signs_and_words():
    ends = {0: (0, 4, "done", []), 1: (0, 4, "failed", []), 2: (0, 4, "interrupted", []), 3: (0, 4, "died", [])}
    state = history(5, ("step()", {**ends, 4: (0, None, "running", [])}))
    lines = timeline.text(state, 4).split("\n")
    assert [line.split()[1][-1] for line in lines[2:7]] == ["✓", "✗", "■", "◆", "▶"]
    svg = timeline.svg(state, 4)
    assert {"failed", "interrupted", "died", "running"} <= set(re.findall(r'font-size="10">(\w+)<', svg))


def test_the_bars_show_work_and_waiting():
    state = history(2, ("step()", {0: (0, 10, "done", [(5, 10)]), 1: (0, 10, "done", [])}))
    lines = timeline.text(state, 10).split("\n")
    assert re.search(r"0  █{19,21}░{19,21}✓$", lines[2])
    assert re.search(r"1  █{39}✓$", lines[3])


def test_without_cells_a_line_says_so():
    state = cluster({"batch": 2}, 2)
    assert timeline.text(state, 0) == "demo: no cell has run on the clients yet"
    assert "no cell has run" in parse(timeline.svg(state, 0), themed=False)[1].text


def test_hundreds_of_clients_that_did_alike_share_a_row():
    waits = {client: (0, 20, "done", [(3, 20)]) for client in range(512)}
    state = history(512, ("step()", {**waits, 17: (0, 20, "done", [])}))
    assert [row.label for row in rows(state, rounds(state, 20), 20, most=24)] == ["0-16, 18-511", "17"]
    text = timeline.text(state, 20)
    check_text(text)
    assert "clients 0-16, 18-511 waited 17.0 s for client 17" in text


def test_cells_that_are_not_shown_are_counted():
    state = history(1, *((f"cell {number}", {0: (number * 2, number * 2 + 1, "done", [])}) for number in range(9)))
    assert "5 earlier cells not shown" in timeline.text(state, 30)
    assert "3 earlier cells not shown" in timeline.svg(state, 30)


@settings(max_examples=60, deadline=None)
@given(text=hostile_text, width=st.integers(50, 120))
def test_hostile_cells_neither_break_the_markup_nor_the_columns(text, width):
    state = history(2, (text, {0: (0, 4, "done", [(1, 3)]), 1: (0, 4, "failed", [])}))
    state.name = text
    check_text(timeline.text(state, 5, width=width), width)
    assert "<script>" not in timeline.svg(state, 5)
    parse(timeline.svg(state, 5, themed=True), themed=True)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 ms"), (0.12, "120 ms"), (3.06, "3.1 s"), (59.9, "59.9 s"), (125, "2 min 5 s")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_spans_of_one_run_are_one_cell_whether_they_overlap_or_not():
    spans = [CellSpan("In[1]", "x", float(client), client + 0.1, "done", run="a") for client in range(3)]
    state = cluster({"a": 3}, 3)
    for one, span in zip(state.clients, spans, strict=True):
        one.cells = [span, CellSpan("In[2]", "y", 10.0, 11.0, "done", run="b")]
    assert [(cell.text, sorted(cell.spans)) for cell in rounds(state, 20.0)] == [("x", [0, 1, 2]), ("y", [0, 1, 2])]
