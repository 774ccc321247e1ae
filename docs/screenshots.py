"""Take the docs' screenshots: ``python docs/screenshots.py`` in the environment of `make test`.

A real JupyterLab in a real chromium, in its light and its dark theme; the pictures go to docs/images/.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lab import Lab, Notebook
from test_panel import PanelPage, open_panel

IMAGES = Path(__file__).parent / "images"

SETUP = """%%dtensor
import time
x = dtensor.call_with_layout(tf.ones, dtensor.Layout(["batch", "model"], mesh), shape=(8, 6))
bias = dtensor.DVariable(dtensor.call_with_layout(tf.zeros, dtensor.Layout.replicated(mesh, 1), shape=(6,)))
mine = client_id * 10"""

UNEVEN = """%%dtensor
print("step", client_id)
time.sleep(8 if client_id == 2 else 0.5)
print(float(tf.reduce_sum(x)))"""


def take(notebook: Notebook, panel: PanelPage, name: str) -> None:
    """Save a picture of the panel."""
    path = IMAGES / f"{name}.png"
    panel.root.locator(".dtensor-panel").screenshot(path=path)
    print(path.name, path.stat().st_size // 1000, "kB")
    assert not notebook.errors


def session(notebook: Notebook, theme: str) -> None:
    """Go through what a user does, with a picture of each state."""
    notebook.theme(theme)
    look = theme.lower()
    panel = open_panel(notebook)
    panel.field("Device type").select_option("CPU")
    panel.field("Clients").fill("4")
    panel.field("Mesh").fill("batch=3")
    panel.shows("✗ mesh")
    take(notebook, panel, f"panel-form-{look}")
    panel.field("Mesh").fill("batch=2,model=2")
    panel.shows("✓ 4 CPU clients")
    panel.button("Start").click()
    panel.phases(*["✓ ready"] * 4)
    notebook.run(SETUP)
    cell = notebook.start(UNEVEN)
    panel.phases("‖ waiting", "‖ waiting", "▶ busy", "‖ waiting")
    take(notebook, panel, f"panel-busy-{look}")
    panel.tab("Mesh")
    expect(picture(panel, "mesh")).to_be_visible()
    take(notebook, panel, f"panel-mesh-{look}")
    cell.done()
    panel.tab("Timeline")
    panel.shows(re.compile("waited .* for client 2"))
    take(notebook, panel, f"panel-timeline-{look}")
    panel.tab("Variables")
    panel.root.get_by_role("listbox").select_option("x")
    expect(picture(panel, "Layout of x")).to_be_visible()
    take(notebook, panel, f"panel-variables-{look}")
    panel.tab("Clients")
    cell = notebook.start("%%dtensor\nif client_id != 1: float(tf.reduce_sum(x))")
    panel.phases("⚠ hung", "✓ ready", "⚠ hung", "⚠ hung")
    take(notebook, panel, f"panel-hung-{look}")
    panel.button("Interrupt").click()
    cell.done()


def picture(panel: PanelPage, name: str) -> Any:
    """Return a picture by its name."""
    return panel.root.get_by_role("img", name=re.compile(name)).first


def main() -> None:
    """Take them all."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        lab = Lab(Path(home))
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            for theme in ("Light", "Dark"):
                page = browser.new_context(viewport={"width": 1180, "height": 900}).new_page()
                session(Notebook(page, lab).open(f"{theme}.ipynb"), theme)
                page.close()
                lab.end_kernels()
        finally:
            browser.close()
            lab.stop()


if __name__ == "__main__":
    main()
