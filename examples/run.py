"""Run notebooks headless, and print what they say: ``python examples/run.py [NOTEBOOK ...]``.

Without arguments it runs every notebook beside this file. They run in this Python environment, whichever kernels
are installed. The first cell that fails ends the run, with its traceback and exit code 1. After a cell with the tag
``raises-exception``, which is meant to fail, it goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

#: The longest cell that is shown whole, and how many lines are shown of a longer one.
WHOLE, BEGINNING = 12, 9


class ThisPythonManager(AsyncKernelManager):
    """Starts ipykernel in this interpreter, whichever kernel it is asked for."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """The one kernel that it knows."""
        launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        # ipykernel 7 warns of any connection without encryption; this one does not leave the machine.
        quiet = "--IPKernelApp.log_level=ERROR"
        return KernelSpec(argv=[*launch, quiet], display_name="this Python", language="python")


def abbreviate(source: str) -> str:
    """Return a cell's first lines as IPython would show them at its prompt."""
    lines = source.splitlines()
    shown = lines if len(lines) <= WHOLE else lines[:BEGINNING]
    text = "\n".join(f"{'...' if number else '>>>'} {line}".rstrip() for number, line in enumerate(shown))
    return text if shown is lines else f"{text}\n    ({len(lines) - len(shown)} more lines)"


def as_text(output: dict[str, Any]) -> str:
    """Return an output as text: a stream's own, an error's traceback, or a display's ``text/plain``."""
    kind = output["output_type"]
    if kind == "stream":
        return str(output["text"])
    if kind == "error":
        return "\n".join(output["traceback"]) + "\n"
    data = output["data"]
    return str(data.get("text/plain", f"({', '.join(data)})")) + "\n"


def print_source(cell: dict[str, Any]) -> None:
    """Print a cell before it runs: code abbreviated, of text the headings."""
    if cell["cell_type"] == "code":
        print(f"\n{abbreviate(cell['source'])}", flush=True)
    else:
        headings = [line for line in cell["source"].splitlines() if line.startswith("#")]
        print("".join(f"\n{heading}\n" for heading in headings), end="", flush=True)


def run(path: Path, timeout: int) -> bool:
    """Run a notebook, print it, and return whether all of its cells ended well."""
    began = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    running: list[dict[str, Any]] = []

    def start(cell: dict[str, Any], cell_index: int) -> None:
        del cell_index
        print_source(cell)
        running.append(cell)

    def finish(**_: Any) -> None:
        outputs = running.pop().get("outputs", [])
        print("".join(as_text(output) for output in outputs), end="", flush=True)

    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_manager_class=ThisPythonManager,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=start,
        on_cell_executed=finish,
    )
    problem = ""
    try:
        client.execute()
    except CellExecutionError as error:
        # Its traceback stands among the cell's outputs.
        problem = f"{error.ename}: {error.evalue}"
    except (CellTimeoutError, DeadKernelError) as error:
        finish()
        problem = str(error).strip()
    seconds = time.monotonic() - began
    print(f"\n{path}: {'failed after' if problem else 'ran in'} {seconds:.1f} s", flush=True)
    if problem:
        print(problem, file=sys.stderr)
    return not problem


def main() -> int:
    """Run the notebooks named on the command line, up to the first that fails."""
    parser = argparse.ArgumentParser(description="Run notebooks headless and print their output.")
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="all beside this file, if none")
    parser.add_argument("--timeout", type=int, default=120, metavar="S", help="seconds that a cell may take (120)")
    options = parser.parse_args()
    notebooks = options.notebooks or sorted(Path(__file__).parent.glob("*.ipynb"))
    missing = [str(path) for path in notebooks if not path.is_file()]
    if missing:
        parser.error(f"no such notebook: {', '.join(missing)}")
    return 0 if all(run(path, options.timeout) for path in notebooks) else 1


if __name__ == "__main__":
    sys.exit(main())
