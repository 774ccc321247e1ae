"""The magics that show, in real notebooks: what each output holds, and what becomes of it elsewhere."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import nbformat
import pytest
from notebooks import Manager, Outputs, run_notebook

CELL = """%%dtensor
w = dtensor.call_with_layout(tf.ones, dtensor.Layout(["batch", "unsharded"], mesh), shape=(8, 3))
b = dtensor.DVariable(dtensor.call_with_layout(tf.zeros, dtensor.Layout.replicated(mesh, 1), shape=(3,)), name="b")
class Net(tf.Module):
    def __init__(self):
        self.w, self.b = dtensor.DVariable(w, name="w"), b
net = Net()
own = client_id"""

LINES = [
    "%dtensor_mesh",
    "%dtensor_mesh w",
    "%dtensor_layout w b",
    "%dtensor_layout net",
    "%dtensor_layout w --values",
    "%dtensor_variables",
    "%dtensor_timeline",
    "%dtensor_panel",
    "%dtensor_status",
]


@pytest.fixture(scope="module")
def shown():
    """Run all of them on two clients with two devices each."""
    cells = ["%load_ext dtensor_magic", "%dtensor_init CPU -n 2 --logical-cpus 2 --mesh batch=4", CELL, *LINES]
    return dict(zip(LINES, run_notebook(cells)[3:], strict=True))


def picture(output: Outputs) -> tuple[str, str]:
    (data,) = output.shown
    assert sorted(data) == ["image/svg+xml", "text/plain"]
    return data["image/svg+xml"], data["text/plain"]


def test_a_mesh_is_a_picture_and_a_text_of_eighty_columns(shown):
    svg, text = picture(shown["%dtensor_mesh"])
    assert "mesh: 4 CPU devices, batch=4, 2 clients" in text
    assert "CPU 3" in text
    assert "<title" in svg
    assert max(map(len, text.splitlines())) <= 80
    assert picture(shown["%dtensor_mesh w"])[1] == text


def test_layouts_stand_side_by_side_with_ranges_bytes_and_copies(shown):
    _, text = picture(shown["%dtensor_layout w b"])
    assert "w: EagerTensor float32 (8, 3)" in text
    assert "24 B on each of 4 devices, 96 B in all" in text
    assert "b: DVariable float32 (3)" in text
    assert "0:2" in text
    assert re.search(r"copies|copy", text)


def test_a_module_is_a_table_of_its_variables(shown):
    _, text = picture(shown["%dtensor_layout net"])
    assert "net: Net, 2 tensors" in text
    assert ".w" in text
    assert "[batch, unsharded]" in text


def test_values_are_a_heat_map(shown):
    assert "values from 1 to 1" in picture(shown["%dtensor_layout w --values"])[1]


def test_variables_are_a_table_with_differences(shown):
    (data,) = shown["%dtensor_variables"].shown
    assert "≠ a value per client" in data["text/plain"]
    assert "≠ a value per client" in data["text/html"]


def test_the_timeline_has_the_cell(shown):
    assert "w = dtensor.call_with" in picture(shown["%dtensor_timeline"])[1]


def test_the_panel_leaves_a_text_where_there_are_no_widgets(shown):
    (data,) = shown["%dtensor_panel"].shown
    assert sorted(data) == ["application/vnd.jupyter.widget-view+json", "text/plain"]
    assert "dtensor-1: ready, 2 CPU clients (multi-client)" in data["text/plain"]


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found |= {tag, *(f"{tag}.{name}" for name, _ in attrs)}


def test_html_needs_nothing_that_sanitisers_take_away(shown):
    for line in ("%dtensor_variables", "%dtensor_status"):
        (data,) = shown[line].shown
        tags = Tags(data["text/html"]).found
        assert not {tag for tag in tags if tag in ("script", "style", "svg", "iframe", "object", "form", "input")}
        assert not {tag for tag in tags if ".on" in tag}


def test_nbconvert_makes_a_page_with_the_pictures():
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter

    cells = [
        "%load_ext dtensor_magic",
        "%dtensor_init CPU -n 2 --mesh batch=2",
        "%dtensor_mesh",
        "%dtensor_variables",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_manager_class=Manager).execute()
    page, _ = HTMLExporter().from_notebook_node(notebook)
    pictures = [base64.b64decode(one) for one in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)]
    assert any(b"2 CPU devices" in one for one in pictures)
    assert "2 CPU clients (multi-client)" in page


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%dtensor_mesh", "no cluster runs; start one with %dtensor_init"),
        ("%dtensor_layout", "%dtensor_layout: the following arguments are required: NAME"),
        ("%dtensor_variables --nme x", "did you mean --name?"),
        ("%dtensor_panel x", "unrecognized|unknown option|no option"),
    ],
)
def test_what_cannot_be_shown_is_one_line(line, says):
    output = run_notebook(["%load_ext dtensor_magic", line], allow_errors=True)[1]
    assert output.error["ename"] == "SpecError"
    assert re.search(says, output.error["evalue"])


def test_in_local_mode_the_notebook_kernel_is_shown():
    cells = [
        "%load_ext dtensor_magic",
        "%dtensor_init CPU --logical-cpus 4 --mesh batch=4",
        "%dtensor_layout w",
        "w = dtensor.call_with_layout(tf.ones, dtensor.Layout(['batch'], mesh), shape=(8,))",
        "%dtensor_layout w --values",
        "%dtensor_mesh",
        "%dtensor_variables",
        "%dtensor_timeline",
        "other = dtensor.create_mesh([('q', 4)], device_type='CPU')",
        "%dtensor_mesh other",
    ]
    out = run_notebook(cells, allow_errors=True)
    assert "no client of dtensor-1 has 'w'; %dtensor_variables lists what there is." in out[2].error["evalue"]
    assert "8 B on each of 4 devices" in picture(out[4])[1]
    assert "mesh: 4 CPU devices, batch=4" in picture(out[5])[1]
    assert "float32" in out[6].shown[0]["text/plain"]
    assert "no cell has run" in picture(out[7])[1]
    assert "other: 4 CPU devices, q=4" in picture(out[9])[1]
