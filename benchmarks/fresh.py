"""One measurement in a fresh process: nothing that an earlier one imported or left running helps or hinders it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

#: Seconds after which a measurement counts as hung.
LIMIT = 240.0


def measure(script: str, *arguments: str) -> dict[str, Any]:
    """Run ``python script arguments`` and return the JSON of the last line that it prints.

    It gets an IPython folder of its own, so that the user's profile neither matters nor is written to.

    Raises
    ------
    RuntimeError
        With the end of what it wrote, if it fails or takes more than `LIMIT` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, script, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "IPYTHONDIR": folder},
            )
            try:
                output, _ = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                output = f"took more than {LIMIT:g} s"
            finally:
                if process.poll() is None:
                    end([*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)])
                    process.wait()
        if process.returncode != 0:
            words = f"{output}\n{log.read_text('utf-8', 'replace')}".strip()[-3000:]
            raise RuntimeError(f"{Path(script).name} {' '.join(arguments)} failed: {words}")
    result: dict[str, Any] = json.loads(output.strip().rpartition("\n")[2])
    return result


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill `processes` that still run, and wait until they are gone."""
    processes = list(processes)
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            # It ended by itself, which is as good.
            continue
    psutil.wait_procs(processes, timeout=10)


def give(result: dict[str, Any]) -> None:
    """Hand `result` to :func:`measure`, from the fresh process, and leave nothing running."""
    end(psutil.Process().children(recursive=True))
    print(json.dumps(result), flush=True)
