"""Run cells in a real notebook kernel of this interpreter, headless."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient

SPEC = KernelSpec(
    argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    display_name="this interpreter",
    language="python",
)


class Manager(AsyncKernelManager):
    """Starts this interpreter's kernel, whatever kernelspecs are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return SPEC


class BlockingManager(KernelManager):
    """The same, for tests that talk to the kernel themselves; of another interpreter if `python` names one."""

    python = sys.executable

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**{**SPEC.to_dict(), "argv": [self.python, *SPEC.argv[1:]]})


class Outputs:
    """What a cell put out."""

    def __init__(self, cell: Any) -> None:
        self.raw = cell.get("outputs", [])

    def stream(self, name: str = "stdout") -> str:
        return "".join(
            output["text"] for output in self.raw if output["output_type"] == "stream" and output["name"] == name
        )

    @property
    def error(self) -> Any:
        return next((output for output in self.raw if output["output_type"] == "error"), None)

    @property
    def shown(self) -> list[dict[str, Any]]:
        return [
            output["data"] for output in self.raw if output["output_type"] in ("display_data", "execute_result")
        ]

    def __repr__(self) -> str:
        return repr(self.raw)


def run_notebook(
    cells: list[str], *, allow_errors: bool = False, timeout: int = 120, **kernel: Any
) -> list[Outputs]:
    """Run `cells` one after another in a fresh kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=timeout, allow_errors=allow_errors, kernel_manager_class=Manager)
    client.execute(**kernel)
    return [Outputs(cell) for cell in notebook.cells]


@contextmanager
def kernel(python: str = sys.executable, **options: Any) -> Iterator[tuple[KernelManager, Any]]:
    """Start a notebook kernel of `python` and give its manager and blocking client."""
    manager = BlockingManager()
    manager.python = python
    manager.start_kernel(**options)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def execute(client: Any, code: str, timeout: float = 60.0) -> tuple[dict[str, Any], str]:
    """Run one cell through a blocking client; return the reply's content and its text output."""
    text: list[str] = []

    def hook(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            text.append(content["text"])
        elif message["msg_type"] in ("execute_result", "display_data"):
            text.append(content["data"].get("text/plain", ""))

    reply = client.execute_interactive(code, timeout=timeout, output_hook=hook, allow_stdin=False)
    return reply["content"], "".join(text)
