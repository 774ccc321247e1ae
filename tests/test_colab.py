"""The notebook kernel on Colab's versions of IPython, ipykernel, jupyter_client, ipywidgets and TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import marked_processes, wait_for
from notebooks import execute, kernel
from widgets import PanelWidgets


@pytest.fixture(scope="module")
def python() -> str:
    """Give the interpreter of the environment that `make colab` makes."""
    name = "DTENSOR_MAGIC_COLAB_PYTHON"
    if path := os.environ.get(name):
        return path
    reason = f"Colab's versions are not tested: run `make test`, or set {name} to the python of `make colab`'s environment"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def colab(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Give the client of a notebook kernel with the extension loaded; nothing may be left when it ends."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    with kernel(python) as (_, client):
        run(client, "%load_ext dtensor_magic")
        yield client
    wait_for(lambda: not marked_processes(tmp_path), what=f"processes are left: {marked_processes(tmp_path)}")
    assert list((tmp_path / "dtensor-magic").glob("*")) == []


def run(client: Any, code: str) -> str:
    """Run a cell that succeeds; return its text."""
    reply, text = execute(client, code)
    assert reply["status"] == "ok", "\n".join(reply["traceback"])
    return text


def test_the_kernel_is_of_colabs_versions(colab):
    packages = ("ipykernel", "ipython", "ipywidgets", "jupyter_client", "pyzmq", "traitlets")
    pins = dict(
        line.split("==") for line in (Path(__file__).parent / "colab.txt").read_text().splitlines() if "==" in line
    )
    versions = run(colab, f"from importlib.metadata import version\nprint(*map(version, {packages}))")
    assert versions.split() == [pins[name] for name in packages]


def test_tab_offers_options_and_values(colab):
    # Among Python's names, which IPython 7 does not let us keep out.
    def complete(line: str) -> list[str]:
        reply = colab.complete(line, len(line), reply=True, timeout=20)
        return reply["content"]["matches"]

    assert "--logical-cpus" in complete("%dtensor_init CPU --lo")
    assert {"fork", "exec"} <= set(complete("%dtensor_init CPU --start-method "))
    assert "import" in complete("imp")


@pytest.mark.long
def test_a_cluster_starts_runs_fails_comes_back_with_its_variables_and_ends(colab):
    assert "dtensor-1: ready, 2 CPU clients (multi-client), mesh batch=2" in run(
        colab, "%dtensor_init CPU -n 2 --mesh batch=2"
    )
    cell = (
        "%%dtensor\n"
        "x = dtensor.call_with_layout(tf.ones, dtensor.Layout(['batch'], mesh), shape=(8,))\n"
        "print('sum', float(tf.reduce_sum(x)))"
    )
    assert run(colab, cell) == "[0-1] sum 8.0\n"
    reply, _ = execute(colab, "%%dtensor\nif client_id == 1:\n    1 / 0\nfloat(tf.reduce_sum(x))")
    assert (reply["status"], reply["ename"]) == ("error", "CellError")
    assert "ZeroDivisionError" in reply["evalue"]
    assert "kept: x" in run(colab, "%dtensor_restart --keep all")
    assert run(colab, "%dtensor print('sum', float(tf.reduce_sum(x)))") == "[0-1] sum 8.0\n"
    assert "dtensor-1: ready, 2 CPU clients (multi-client), mesh batch=2" in run(colab, "%dtensor_status")
    assert run(colab, "%dtensor_shutdown") == "ended: dtensor-1\n"


@pytest.mark.long
def test_the_panel_starts_a_cluster_moves_while_a_cell_runs_and_says_that_clicks_wait(colab):
    assert "No cluster runs." in run(colab, "%dtensor_panel")
    panel = PanelWidgets(colab)
    panel.set("box", _view_count=1)
    panel.set("device_type", index=1)
    panel.set("clients", value="two")
    panel.wait("✗ clients: &#x27;two&#x27; is not a client count; it is 1 or more.")
    panel.set("clients", value="2")
    panel.set("mesh", value="batch=2")
    panel.wait("%dtensor_init CPU -n 2 --mesh batch=2")
    panel.click("start")
    panel.wait("dtensor-1 is ready.")
    asked = colab.execute("%%dtensor\nimport time; time.sleep(4)")
    panel.wait("this kernel (ipykernel 6.17.1) has one thread for cells and clicks")
    panel.wait("▶ busy")
    panel.click("interrupt")
    reply = colab.get_shell_msg(timeout=20)
    while reply["parent_header"].get("msg_id") != asked:
        reply = colab.get_shell_msg(timeout=20)
    assert reply["content"]["status"] == "ok"
    panel.wait("clients 0-1 were idle")
    panel.click("stop")
    panel.wait("Click again to do it.")
    panel.click("stop")
    panel.wait("No cluster runs")
    assert run(colab, "print('alive')") == "alive\n"
