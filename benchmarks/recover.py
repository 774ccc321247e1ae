"""How long a failure, an interrupt and a rebuild take on four clients, beside ipyparallel's engines.

Every measurement is made in a fresh process, with the mesh up and a collective done. The engines are DTensor
clients as well. What they do not come back from is given up after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fresh
import ipykernel.kernelapp  # noqa: F401 - a notebook kernel has it, so no tool pays for it
import report
from sides import Ours, Theirs, TheirsKilled
from situations import ALL_FAIL, CLIENTS, FAILURES, INTERRUPTS, KEPT, LAST_STEP, SITUATIONS

#: Seconds that the project promises: from a failure to the cell's end, after the grace; from an interrupt to the
#: cell's end, and where only the ladder's last step helps; for a rebuild.
FAILURE_BAR, INTERRUPT_BAR, LAST_STEP_BAR, REBUILD_BAR = 1, 1, 3, 2

TOOLS: dict[str, Callable[[Path, float], Any]] = {
    "dtensor_magic": Ours,
    "ipyparallel": Theirs,
    "ipyparallel, killed first": TheirsKilled,
}


def measure(tool: str, situation: str, limit: float) -> dict[str, Any]:
    """Measure one situation, in this very process."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        clients = TOOLS[tool](Path(folder), limit)
        if situation in FAILURES:
            found: dict[str, Any] = clients.fail(FAILURES[situation], CLIENTS if situation in ALL_FAIL else 1)
        elif situation in INTERRUPTS:
            found = clients.interrupt(INTERRUPTS[situation])
        else:
            found = clients.rebuild(KEPT[situation])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, metavar="K", help="measure dtensor_magic K times (3)")
    parser.add_argument(
        "--limit", type=float, default=20, metavar="S", help="give an engine up after S seconds (20)"
    )
    parser.add_argument("--skip-ipyparallel", action="store_true", help="leave ipyparallel out")
    parser.add_argument(
        "--one", nargs=2, metavar=("TOOL", "SITUATION"), help="measure in this process, print the JSON"
    )
    options = parser.parse_args()
    if options.one:
        fresh.give(measure(*options.one, options.limit))
        return
    # TensorFlow's 1 GB is read from the disk once, for nobody's account.
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, stderr=subprocess.DEVNULL)
    tools = list(TOOLS)[:1] if options.skip_ipyparallel else list(TOOLS)
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for situation in SITUATIONS:
        for tool in tools:
            if tool == "ipyparallel, killed first" and situation not in KEPT:
                continue
            for _ in range(options.repeat if tool == "dtensor_magic" else 1):
                run = fresh.measure(__file__, "--one", tool, situation, f"--limit={options.limit}")
                runs.setdefault((situation, tool), []).append(run)
                print(f"{situation}, {tool}: {_words(run, options.limit)} s", flush=True)
    _publish(runs, options.limit)


def _words(run: dict[str, Any], limit: float) -> str:
    return f"not within {limit:g}" if run["seconds"] is None else f"{run['seconds']:.2f}"


def _publish(runs: dict[tuple[str, str], list[dict[str, Any]]], limit: float) -> None:
    seconds = {situation: [run["seconds"] for run in runs[situation, "dtensor_magic"]] for situation in SITUATIONS}
    median = {situation: statistics.median(found) for situation, found in seconds.items()}

    def theirs(situation: str, tool: str = "ipyparallel") -> str:
        return _words(runs[situation, tool][0], limit) if (situation, tool) in runs else "-"

    def ours(situation: str) -> list[str]:
        return [f"{median[situation]:.2f}", f"{max(seconds[situation]):.2f}"]

    after = {}
    for situation in FAILURES:
        grace = 0.0 if situation in ALL_FAIL else runs[situation, "dtensor_magic"][0]["grace"]
        after[situation] = max(median[situation] - grace, 0.0)
    columns = ["dtensor_magic", "longest"]
    failures = report.table(
        ["what happens", *columns, "after the grace", "ipyparallel"],
        ([situation, *ours(situation), f"{after[situation]:.2f}", theirs(situation)] for situation in FAILURES),
    )
    interrupts = report.table(
        ["what runs", *columns, "ipyparallel", "what came of dtensor_magic's clients"],
        (
            [situation, *ours(situation), theirs(situation), runs[situation, "dtensor_magic"][-1]["said"]]
            for situation in INTERRUPTS
        ),
    )
    rebuilds = report.table(
        ["what", *columns, "ipyparallel", "engines back", "killed first", "engines back"],
        (
            [
                situation,
                *ours(situation),
                *(
                    cell
                    for tool in list(TOOLS)[1:]
                    for cell in (theirs(situation, tool), _ready(runs.get((situation, tool))))
                ),
            ]
            for situation in KEPT
        ),
    )
    bars = [report.Bar(f"{what}: to the cell's end", value, FAILURE_BAR) for what, value in after.items()]
    bars += [
        report.Bar(
            f"interrupt, {what}: to the cell's end",
            median[what],
            LAST_STEP_BAR if what in LAST_STEP else INTERRUPT_BAR,
        )
        for what in INTERRUPTS
    ]
    bars += [report.Bar(what, median[what], REBUILD_BAR) for what in KEPT]
    report.publish(
        "recover",
        "Recover: failure, interrupt, rebuild",
        [
            f"{CLIENTS} clients in one mesh. Seconds; of dtensor_magic the median and the longest of "
            f"{len(seconds[SITUATIONS[0]])}, of ipyparallel one measurement, given up after {limit:g} s.",
            "From a failure to the cell's end. Where the others wait in a collective for the one that failed, "
            "dtensor_magic grants them a grace of 1 s before it releases them.",
            failures,
            "From an interrupt to the cell's end.",
            interrupts,
            "From the command to new clients that have their mesh and the variables, half of them replicated and "
            'half sharded. "engines back": of these, until the engines answered, without TensorFlow.',
            rebuilds,
        ],
        bars,
        {
            "runs": [
                {"situation": what, "tool": tool, **run, "said": run["said"][:200]}
                for (what, tool), found in runs.items()
                for run in found
            ]
        },
    )


def _ready(runs: list[dict[str, Any]] | None) -> str:
    return f"{runs[0]['ready']:.2f}" if runs else "-"


if __name__ == "__main__":
    main()
