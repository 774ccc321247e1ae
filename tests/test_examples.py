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
import pytest
from conftest import marked_processes, wait_for
from nbclient import NotebookClient
from notebooks import Manager

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


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


def may_raise(cell: Any) -> bool:
    """Whether a run goes on after `cell`'s error."""
    return "raises-exception" in cell.metadata.get("tags", [])


def errors(cell: Any) -> list[str]:
    return [f"{output.ename}: {output.evalue}" for output in cell.outputs if output.output_type == "error"]


def error_of(notebook: Any, name: str) -> str:
    """Return the error of the cell `name`, as the notebook shows it."""
    cell = next(cell for cell in notebook.cells if cell.id == name)
    shown = ["\n".join(output.traceback) for output in cell.outputs if output.output_type == "error"]
    return _ANSI.sub("", "\n".join(shown))


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
def test_an_example_runs_to_its_end_and_errs_only_where_it_says_so_and_leaves_nothing(name, execute, nothing_left):
    code = [cell for cell in execute(name).cells if cell.cell_type == "code"]
    assert all(cell.execution_count is not None for cell in code)
    assert not [error for cell in code if not may_raise(cell) for error in errors(cell)]
    assert all(errors(cell) for cell in code if may_raise(cell))


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


@pytest.mark.long
def test_hang_and_recover_names_the_client_that_failed_and_who_waits_where(execute):
    notebook = execute("hang_and_recover.ipynb")
    raised = error_of(notebook, "raise")
    assert "client 1 of dtensor-1 raised:" in raised
    assert "OSError: cannot read the images of step 8" in raised
    assert "clients 0, 2-3 were released from a collective" in raised
    line = re.escape("(loss = float(step(*read(done + 1))))")
    assert re.search(rf"clients 0-1, 3 wait .*at line \d+ {line}; client 2 finished", printed(notebook))
    assert "clients 0-1, 3 of dtensor-1 had not finished after 4 s" in error_of(notebook, "hang")
    assert "client 3 of dtensor-1 was killed by SIGKILL" in error_of(notebook, "kill")
    assert all("%dtensor_restart --keep all" in error_of(notebook, name) for name in ("raise", "hang", "kill"))


@pytest.mark.long
def test_hang_and_recover_goes_on_with_the_same_weights(execute):
    text = printed(execute("hang_and_recover.ipynb"))
    # That checksums are those from before is asserted in the notebook; here, that all clients have the same.
    assert len(re.findall(r"^\[0-[13]\] checksums \{'w': '[0-9a-f]{8}', 'b': ", text, re.MULTILINE)) == 5
    steps = re.findall(r"^\[0-[13]\] step +(\d+)  loss ([0-9.]+)$", text, re.MULTILINE)
    assert [int(step) for step, _ in steps] == list(range(1, 28))
    losses = [float(loss) for _, loss in steps]
    assert losses[26] < losses[16] < losses[6] < losses[0]


@pytest.mark.long
def test_hang_and_recover_loses_nothing_but_the_dead_clients_shards(execute):
    text = printed(execute("hang_and_recover.ipynb"))
    kept = re.findall(r"^kept: (.*)$", text, re.MULTILINE)
    assert len(kept) == 4
    assert all({"w", "b", "done", "noted"} <= set(names.split(", ")) for names in kept)
    assert re.findall(r"^lost: (\w+)", text, re.MULTILINE) == ["v"]
    assert "[0-1] rows of v on each client 32\n" in text


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


def test_the_runner_shows_the_traceback_and_goes_on_where_a_cell_is_tagged_to_raise(tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}),
            nbformat.v4.new_code_cell("print('gone', 'on')"),
        ]
    )
    path = tmp_path / "tagged.ipynb"
    nbformat.write(notebook, path)
    done = run_examples(str(path))
    assert done.returncode == 0
    # The runner has nothing to complain about; what ipykernel itself logs while it ends is another matter.
    assert "run.py" not in done.stderr
    assert "ZeroDivisionError" not in done.stderr
    assert "ZeroDivisionError: division by zero" in _ANSI.sub("", done.stdout).partition("gone on\n")[0]
    assert "tagged.ipynb: ran in" in done.stdout


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
