"""The panel as people see it: in a real JupyterLab, by roles and labels."""

from __future__ import annotations

import re

import pytest
from lab import Cell, Notebook
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.long]

SETUP = "%%dtensor\nimport time\nx = dtensor.call_with_layout(tf.ones, dtensor.Layout(['batch'], mesh), shape=(8,))"


class PanelPage:
    """A panel that a cell shows."""

    def __init__(self, cell: Cell) -> None:
        self.root = cell.output

    def button(self, name: str):
        """Return a button by its word, which an icon stands before."""
        return self.root.get_by_role("button", name=re.compile(rf"^\W*{name}$"))

    def field(self, label: str):
        """Return a field of the form."""
        return self.root.get_by_label(label, exact=True)

    def tab(self, name: str) -> None:
        """Choose a tab."""
        self.root.get_by_role("tab", name=name).click()

    def shows(self, text: str | re.Pattern[str], timeout: float = 20) -> None:
        """Wait for `text`."""
        expect(self.root).to_contain_text(text, timeout=timeout * 1000)

    def phases(self, *phases: str) -> None:
        """Wait until the table's clients are in `phases`, each a beginning of the cell's words."""
        rows = self.root.get_by_role("group", name=re.compile("DTensor cluster")).get_by_role("row")
        expect(rows).to_have_count(len(phases) + 1, timeout=60_000)
        for number, phase in enumerate(phases):
            expect(rows.nth(number + 1)).to_contain_text(re.compile(phase), timeout=20_000)


def open_panel(notebook: Notebook) -> PanelPage:
    notebook.run("%load_ext dtensor_magic")
    return PanelPage(notebook.run("%dtensor_panel"))


def start(panel: PanelPage, clients: int = 4) -> None:
    panel.field("Device type").select_option("CPU")
    panel.field("Clients").fill(str(clients))
    panel.field("Mesh").fill(f"batch={clients}")
    panel.shows(f"✓ {clients} CPU clients in the background, mesh batch={clients}.")
    panel.button("Start").click()
    panel.phases(*["✓ ready"] * clients)


def test_from_the_form_to_a_running_cell_an_interrupt_a_restart_and_the_end(notebook):
    panel = open_panel(notebook)
    panel.shows("No cluster runs")
    expect(panel.button("Stop")).to_be_disabled()
    start(panel)
    panel.shows("%dtensor_init CPU -n 4 --mesh batch=4: dtensor-1 is ready.")
    panel.shows("dtensor-1: ready, 4 CPU clients (multi-client), mesh batch=4")
    notebook.run(SETUP)
    # Busy and waiting show while the notebook kernel itself is busy with the cell.
    cell = notebook.start(
        "%%dtensor\nprint('step', client_id)\nif client_id == 2: time.sleep(8)\nprint(float(tf.reduce_sum(x)))"
    )
    panel.phases("‖ waiting", "‖ waiting", "▶ busy", "‖ waiting")
    panel.shows("step 2")
    panel.tab("Mesh")
    picture = panel.root.get_by_role("img", name=re.compile("mesh"))
    expect(picture).to_be_visible()
    cell.done().shows("[0-3] 8.0")
    panel.tab("Timeline")
    panel.shows(re.compile(r"clients 0-1, 3 waited [\d.]+ s for client 2"))
    panel.tab("Clients")
    # One fails; the others are released.
    notebook.run("%%dtensor\nif client_id == 1: raise ValueError('on purpose')\nfloat(tf.reduce_sum(x))")
    panel.shows("ValueError: on purpose")
    panel.shows("collectives are closed (client 1 failed while its peers waited for it)")
    panel.button("Restart").click()
    panel.shows("%dtensor_restart --keep all: dtensor-1 is ready again.")
    panel.shows("kept: x")
    notebook.run("%%dtensor\nprint(float(tf.reduce_sum(x)))").shows("[0-3] 8.0")
    # A hang, ended from the panel while the notebook kernel waits for the cell.
    cell = notebook.start("%%dtensor\nif client_id != 3: float(tf.reduce_sum(x))")
    panel.phases("⚠ hung", "⚠ hung", "⚠ hung", "✓ ready")
    panel.shows("⚠ clients 0-2 wait in a collective, and client 3 is idle")
    panel.button("Interrupt").click()
    panel.shows("%dtensor_interrupt: clients 0-2 were released from a collective; client 3 had finished")
    cell.done()
    panel.button("Stop").click()
    panel.shows("Stop ends dtensor-1, and its variables are lost. Click again to do it.")
    panel.button(r"Really stop\?").click()
    panel.shows("No cluster runs")


def test_fields_check_themselves_by_the_magics_words(notebook):
    panel = open_panel(notebook)
    said = notebook.run("%dtensor_init CPU -n 4 --mesh batch=3", timeout=30).text.splitlines()[0]
    panel.field("Device type").select_option("CPU")
    panel.field("Clients").fill("4")
    panel.field("Mesh").fill("batch=3")
    panel.shows("✗ " + said.removeprefix("UsageError: "))
    expect(panel.button("Start")).to_be_disabled()
    panel.field("Clients").fill("four")
    panel.shows("✗ clients: 'four' is not a client count; it is 1 or more.")
    panel.field("Clients").fill("3")
    panel.shows("the same as %dtensor_init CPU -n 3 --mesh batch=3")
    expect(panel.button("Start")).to_be_enabled()
    expect(panel.field("megcore")).to_be_disabled()
    panel.shows("for TPU alone")
    expect(panel.field("reset context")).to_be_disabled()
    panel.shows("background clients are fresh processes")
    panel.field("Clients").fill("1")
    panel.shows("this kernel has no TensorFlow context")
    panel.field("More options").fill("--leese 3")
    panel.shows("✗ %dtensor_init: unknown option --leese; did you mean --lease?")


def test_panels_agree_and_follow_a_cluster_however_it_was_started(notebook):
    one = open_panel(notebook)
    two = PanelPage(notebook.run("%dtensor_panel"))
    notebook.run("%dtensor_init CPU -n 2 --name by-magic")
    for panel in (one, two):
        panel.phases("✓ ready", "✓ ready")
        panel.shows("by-magic: ready")
    notebook.run("import dtensor_magic\nother = dtensor_magic.Cluster.start('CPU', clients=3, name='by-python')")
    for panel in (one, two):
        panel.phases("✓ ready", "✓ ready", "✓ ready")
    two.field("Cluster").select_option("by-magic")
    for panel in (one, two):
        panel.phases("✓ ready", "✓ ready")
    # A choice stays when another cluster comes.
    notebook.run("%dtensor_init CPU -n 2 --name third")
    expect(two.field("Cluster").get_by_role("option")).to_have_count(3)
    expect(two.field("Cluster")).to_have_value("by-magic")
    two.shows("by-magic: ready")
    notebook.run("%dtensor_shutdown --all")
    for panel in (one, two):
        panel.shows("No cluster runs")


def test_a_client_that_is_killed_stands_out(notebook):
    panel = open_panel(notebook)
    start(panel, clients=2)
    notebook.run(
        "import os, signal\nos.kill(dtensor_magic.cluster.registry.current().state().clients[1].pid, signal.SIGKILL)".replace(
            "import os", "import os, dtensor_magic.cluster"
        )
    )
    panel.phases("✓ ready", "✗ dead")
    panel.shows("✗ client 1 was killed by SIGKILL")


def test_a_variable_is_chosen_and_its_layout_seen(notebook):
    panel = open_panel(notebook)
    start(panel)
    notebook.run(SETUP + "\nmine = client_id")
    panel.tab("Variables")
    panel.shows("≠ a value per client")
    panel.root.get_by_role("listbox").select_option("x")
    expect(panel.root.get_by_role("img", name=re.compile("^Layout of x"))).to_be_visible()
    panel.shows("sharded: axis 0 over batch in 4")
    panel.field("values (heat map)").check()
    panel.shows("values from 1 to 1")
    # It follows the cells.
    notebook.run("%%dtensor\nlater = 3")
    panel.shows("later")


def test_pictures_by_magic_are_shown(notebook):
    notebook.run("%load_ext dtensor_magic")
    notebook.run("%dtensor_init CPU -n 2 --mesh batch=2")
    notebook.run(SETUP)
    for line in ("%dtensor_mesh", "%dtensor_layout x --values", "%dtensor_timeline"):
        expect(notebook.run(line).output.get_by_role("img")).to_be_visible()
    expect(notebook.run("%dtensor_variables").output.get_by_role("table")).to_contain_text("[batch] on batch=2")
    live = notebook.run("%dtensor_mesh --live")
    expect(live.output.get_by_role("img", name=re.compile("mesh"))).to_be_visible()
    cell = notebook.start("%%dtensor\ntime.sleep(4)")
    live.shows("busy")
    cell.done()
    live.shows("ready")
