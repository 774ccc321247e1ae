"""The example notebooks run from a clean start, say what they promise, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from conftest import wait_for
from nbclient import NotebookClient
from notebooks import Manager

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def marked_processes(runtime: Path) -> list[psutil.Process]:
    """Return the processes that were started with `runtime` as their Jupyter runtime folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("JUPYTER_RUNTIME_DIR") == str(runtime):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give what this module starts a runtime folder by which it is known."""
    folder = tmp_path_factory.mktemp("examples-runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder))
        yield folder


@pytest.fixture
def nothing_left(runtime: Path) -> Iterator[None]:
    """Look that no process, record or socket file of what a test ran is left after it."""
    yield
    wait_for(lambda: not marked_processes(runtime), what=f"processes are left: {marked_processes(runtime)}")
    assert list((runtime / "dtensor-magic").glob("*")) == []


@pytest.fixture(scope="module")
def execute(runtime: Path) -> Callable[[str], Any]:
    """Return a function that runs an example, once however often it is asked, and gives it with its outputs."""
    executed: dict[str, Any] = {}

    def execute(name: str) -> Any:
        if name not in executed:
            notebook = nbformat.read(EXAMPLES / name, as_version=4)
            resources = {"metadata": {"path": str(EXAMPLES)}}
            NotebookClient(notebook, timeout=60, kernel_manager_class=Manager, resources=resources).execute()
            executed[name] = notebook
        return executed[name]

    return execute


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_an_example_is_saved_clean(name):
    notebook = nbformat.read(EXAMPLES / name, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(re.fullmatch(r"[a-z0-9-]+", cell.id) for cell in notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert all(len(cell.source.splitlines()) <= 25 for cell in code)


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_an_example_runs_to_its_end_without_an_error_and_leaves_nothing(name, execute, nothing_left):
    code = [cell for cell in execute(name).cells if cell.cell_type == "code"]
    assert all(cell.execution_count is not None for cell in code)
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]


@pytest.mark.long
def test_the_quickstart_learns_on_both_meshes(execute):
    accuracies = re.findall(r"test accuracy ([0-9.]+)", printed(execute("quickstart.ipynb")))
    assert len(accuracies) == 2
    assert all(float(accuracy) > 0.95 for accuracy in accuracies)


@pytest.mark.long
def test_the_quickstart_shows_once_what_all_clients_print(execute):
    text = printed(execute("quickstart.ipynb"))
    assert "[0-3] sum of all elements 36.0\n" in text
    assert re.search(r"^\[0-3\] epoch +\d+  loss 0\.\d+$", text, re.MULTILINE)
    assert "[2] client 2 is at {'batch': 1, 'model': 0}\n" in text
    assert "[0-3] w1: (64, 128) as ['unsharded', 'model'], on each device (64, 64)\n" in text


@pytest.mark.long
def test_the_quickstart_computes_the_same_losses_on_both_meshes(execute):
    text = printed(execute("quickstart.ipynb"))
    losses = [float(loss) for loss in re.findall(r"epoch 15  loss ([0-9.]+)", text)]
    assert len(losses) >= 2
    assert losses[0] == pytest.approx(losses[-1], abs=0.005)


def run_examples(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "run.py"), *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **env},
        timeout=120,
        check=False,
    )


def save(path: Path, *cells: str) -> str:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, path)
    return str(path)


def test_the_runner_ends_with_1_and_the_traceback_when_a_client_raises(tmp_path, nothing_left):
    notebook = save(
        tmp_path / "wrong.ipynb",
        "%load_ext dtensor_magic\n%dtensor_init CPU -n 2",
        "%%dtensor\ndef share(whole, parts):\n    return whole / parts\n\nshare(1, 0)",
        "print('never', 'reached')",
    )
    done = run_examples(notebook)
    text = _ANSI.sub("", done.stdout)
    assert done.returncode == 1
    assert "clients 0-1 of dtensor-1 raised:" in text
    assert "return whole / parts" in text.partition("raised:")[2]
    assert "ZeroDivisionError: division by zero" in text
    assert "ZeroDivisionError" in done.stderr
    assert "never reached" not in text


def test_the_runner_uses_its_own_interpreter_whatever_kernels_are_installed(tmp_path):
    decoy = tmp_path / "jupyter" / "kernels" / "python3"
    decoy.mkdir(parents=True)
    spec = {"argv": ["/nonexistent/python", "{connection_file}"], "display_name": "a decoy", "language": "python"}
    (decoy / "kernel.json").write_text(json.dumps(spec))
    notebook = save(tmp_path / "which.ipynb", "import sys\nsys.executable")
    done = run_examples(notebook, JUPYTER_PATH=str(tmp_path / "jupyter"))
    assert done.returncode == 0
    assert repr(sys.executable) in done.stdout
    assert re.search(r"which\.ipynb: ran in [0-9.]+ s", done.stdout)


def test_the_runner_ends_with_1_and_shows_what_was_printed_when_a_cell_takes_too_long(tmp_path):
    notebook = save(tmp_path / "slow.ipynb", "import time\nprint('so far', flush=True)\ntime.sleep(60)")
    done = run_examples("--timeout", "2", notebook)
    assert done.returncode == 1
    assert "so far\n" in done.stdout.partition("time.sleep(60)\n")[2]
    assert "timed out" in done.stderr


def test_the_runner_refuses_a_notebook_that_is_not_there(tmp_path):
    done = run_examples(str(tmp_path / "none.ipynb"))
    assert done.returncode == 2
    assert "no such notebook" in done.stderr
