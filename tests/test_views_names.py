"""The variable explorer lists names, and flags what differs between clients."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import check_text, cluster, hostile_text

from dtensor_magic.variables import UNSHARDED, VariableState, over_clients
from dtensor_magic.views import names
from dtensor_magic.views.columns import clip, columns, table, wrap

MESH = cluster({"batch": 2}, 2).meshes[0]


def dtensor(name, spec="batch"):
    return VariableState(name, "dtensor", "DVariable", [4, 2], "float32", [spec, UNSHARDED], MESH, 32)


def value(name, text):
    return VariableState(name, "value", "int", text=text, digest=text)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.attributes, self.words = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.words.append(data)


def read(html):
    tags = Tags()
    tags.feed(html)
    return tags


def test_each_name_has_a_row_with_type_shape_dtype_layout_and_bytes():
    found = over_clients({client: [dtensor("w"), value("n", "3")] for client in range(2)})
    text = names.text(found)
    check_text(text)
    row = [cell.strip() for cell in text.split("\n")[1].split("  ") if cell]
    assert row == ["w", "DVariable", "(4, 2)", "float32", "[batch, unsharded]", "32 B"]
    assert "[batch, unsharded] on batch=2" in names.html(found)
    assert "⚠" not in text


def test_what_differs_is_flagged_by_sign_and_words():
    found = over_clients(
        {
            0: [dtensor("w"), value("rank", "0"), value("only", "1")],
            1: [dtensor("w", UNSHARDED), value("rank", "1")],
        }
    )
    text = names.text(found)
    assert "⚠ layout differs: client 0 [batch, unsharded] on batch=2; client 1" in text
    assert "≠ a value per client" in text
    assert "⚠ not on client 1" in text
    html = names.html(found)
    assert html.count("⚠") == 2
    assert "≠ a value per client" in html


def test_a_group_tells_its_tensors_and_their_bytes():
    group = VariableState("model", "group", "Sequential", parts=[dtensor(".a"), dtensor(".b")])
    assert "2 tensors" in names.text(over_clients({0: [group]}))
    assert "64 B" in names.text(over_clients({0: [group]}))


def test_no_names_are_a_line():
    assert names.text([]) == "the clients hold no names yet"
    assert "no names yet" in names.html([])


@settings(max_examples=100, deadline=None)
@given(name=hostile_text, kind=hostile_text, width=st.integers(50, 120))
def test_html_is_a_plain_table_and_text_keeps_its_columns(name, kind, width):
    variable = VariableState(name, "value", kind, dtype=kind, text=name)
    found = over_clients({0: [variable], 1: []})
    tags = read(names.html(found))
    assert tags.found == {"table", "thead", "tbody", "tr", "th", "td"}
    assert tags.attributes == {"scope", "style"}
    check_text(names.text(found, width=width), width)


@settings(max_examples=200)
@given(st.text(), st.integers(0, 30))
def test_clipped_text_fits_and_keeps_its_beginning(text, limit):
    found = clip(text, limit)
    assert columns(found) <= limit
    if limit > 1 and text.isascii() and text.isprintable():
        assert found == text or (len(found) == limit and text.startswith(found[:-1]))


@settings(max_examples=200)
@given(st.text(), st.integers(8, 40))
def test_wrapped_lines_fit(text, limit):
    assert all(columns(line) <= limit for line in wrap(text, limit))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1, max_size=5), st.integers(12, 60))
def test_tables_fit(rows, limit):
    assert all(columns(line) <= limit for line in table(rows, limit))
