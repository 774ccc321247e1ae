"""The notebook as people see it: cells, the stop button and widgets in a real JupyterLab."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.long]

#: A number that the handler of a button raises, shown in words that no source line has.
WIDGETS = """
import ipywidgets, threading, time
number = 0
said = ipywidgets.HTML("not pressed")
said._view_count = 0
many = ipywidgets.IntSlider(description="Many", value=3)
button = ipywidgets.Button(description="Press")
def pressed(_):
    global number
    number += 1
    said.value = f"pressed: {number}"
button.on_click(pressed)
display(many, said, button)
"""

#: Let the kernel serve what a page sends while a cell runs, where it has subshells. ipykernel 7.4 answers on the
#: subshell that last sent to the widget, and for a widget that a cell made, that is the one that runs cells.
SERVED_WHILE_BUSY = """
for widget in (said, button):
    if hasattr(widget.comm, "_reply_subshell_for"):
        widget.comm._reply_subshell_for = lambda data, asked: asked
"""

#: A cell that keeps the kernel busy until `condition` holds, for ten seconds at most, and tells whether it did.
BUSY = """
print("busy", flush=True)
end = time.monotonic() + {seconds}
while not ({condition}) and time.monotonic() < end:
    time.sleep(0.05)
print("held:", {condition})
"""


def busy(notebook, condition: str, seconds: float = 10.0):
    return notebook.start(BUSY.format(condition=condition, seconds=seconds)).shows("busy")


def test_the_quickstart_runs_in_lab(notebook):
    notebook.run("%load_ext dtensor_magic")
    card = notebook.run("%dtensor_init CPU -n 2 --mesh batch=2")
    card.shows("dtensor-1: ready, 2 CPU clients (multi-client), mesh batch=2")
    assert card.output.get_by_role("group", name="DTensor cluster dtensor-1").get_by_role("row").count() == 3
    cell = notebook.run(
        "%%dtensor\n"
        "x = dtensor.call_with_layout(tf.ones, dtensor.Layout(['batch'], mesh), shape=(8,))\n"
        "print(f'I am client {client_id}')\n"
        "print('sum', float(tf.reduce_sum(x)))"
    )
    assert sorted(cell.text.split("\n")[:2]) == ["[0] I am client 0", "[1] I am client 1"]
    cell.shows("[0-1] sum 8.0")
    notebook.run("%dtensor_shutdown").shows("ended: dtensor-1")


def test_the_stop_button_ends_a_collective_that_hangs_and_says_who_waited_where(notebook):
    notebook.run("%load_ext dtensor_magic\n%dtensor_init CPU -n 2 --mesh batch=2")
    cell = notebook.start(
        "%%dtensor\n"
        "x = dtensor.call_with_layout(tf.ones, dtensor.Layout(['batch'], mesh), shape=(8,))\n"
        "if client_id == 0:\n"
        "    print('sum', float(tf.reduce_sum(x)))"
    )
    cell.shows(re.compile(r"client 0 waits .*; client 1 finished"))
    notebook.interrupt()
    cell.done(timeout=20)
    assert "float(tf.reduce_sum(x))" in cell.text
    assert "%dtensor_restart --keep all" in cell.text
    notebook.run("%dtensor_restart --keep all")
    notebook.run("%dtensor print('sum', float(tf.reduce_sum(x)))").shows("[0-1] sum 8.0")


def test_a_notebook_opens_by_the_menu_in_either_theme(new_page, tmp_path):
    notebook = new_page().open_by_menu()
    notebook.run("print('this' + ' works')").shows("this works")
    for theme in ("Dark", "Light"):
        notebook.theme(theme)
        notebook.screenshot(tmp_path / f"{theme}.png")
        assert (tmp_path / f"{theme}.png").read_bytes().startswith(b"\x89PNG")


def test_widgets_show_and_answer_while_the_kernel_is_idle(notebook):
    shown = notebook.run(WIDGETS).output
    assert shown.get_by_role("slider").is_visible()
    shown.get_by_text("not pressed").wait_for()
    shown.get_by_role("button", name="Press").click()
    shown.get_by_text("pressed: 1").wait_for()


def test_a_button_answers_while_a_cell_runs_where_its_messages_take_the_subshell(notebook):
    shown = notebook.run(WIDGETS).output
    notebook.run(SERVED_WHILE_BUSY)
    cell = busy(notebook, "number == 1")
    shown.get_by_role("button", name="Press").click()
    shown.get_by_text("pressed: 1").wait_for()
    assert "held: True" in cell.done().text


def test_a_button_of_a_cell_answers_after_the_running_cell_if_the_kernel_ties_it_to_that(notebook):
    shown = notebook.run(WIDGETS).output
    tied = notebook.run("print('tied:', hasattr(button.comm, '_reply_subshell_for'))").text == "tied: True"
    cell = busy(notebook, "number == 1", seconds=2)
    shown.get_by_role("button", name="Press").click()
    shown.get_by_text("pressed: 1").wait_for()
    assert cell.done().text.endswith(f"held: {not tied}")


def test_what_a_thread_sets_is_on_the_page_at_once_while_a_cell_runs(notebook):
    shown = notebook.run(WIDGETS).output
    notebook.run("seen = threading.Event()\nthreading.Thread(target=lambda: seen.wait() and setattr(said, 'value', 'from a thread'), daemon=True).start()")  # fmt: skip
    notebook.run(SERVED_WHILE_BUSY)
    cell = notebook.start("seen.set()\nprint('busy', flush=True)\nwhile number == 0: time.sleep(0.05)")
    # The kernel stays busy until this is on the page and the button is pressed.
    shown.get_by_text("from a thread").wait_for(timeout=3000)
    shown.get_by_role("button", name="Press").click()
    cell.done()


def test_a_widget_counts_its_views_and_notes_while_a_cell_runs_that_they_are_gone(notebook):
    notebook.run(WIDGETS)
    busy(notebook, "said._view_count == 1", seconds=0).done()
    notebook.run("display(said)")
    notebook.run("print('views:', said._view_count)").shows("views: 2")
    notebook.run(SERVED_WHILE_BUSY)
    cell = busy(notebook, "said._view_count == 0")
    notebook.clear_outputs()
    cell.done()
    notebook.run("print('views:', said._view_count)").shows("views: 0")
