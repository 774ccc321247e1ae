"""Latency of a small cell: ``%%dtensor`` beside ipyparallel's ``%%px``, in one IPython session.

Each cell runs on N clients and on N engines by turns, so that both see the same machine. The clients have
TensorFlow and DTensor initialised; the engines are bare, which can only help them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import fresh
import report

#: The cells, by the name that the table gives them.
CELLS = {"pass": "pass", "value": "1", "print": "print('a line')"}

#: What every cell's captured output has to hold, so that no latency is of a cell that did not run.
EXPECTED = {"pass": "", "value": "1", "print": "a line"}

#: The magic of each tool.
MAGICS = {"dtensor_magic": "dtensor", "ipyparallel": "px"}

#: The cells that the bar is for, and the client counts.
BAR_CLIENTS = (4, 8)
BAR = 0.6


def measure(clients: int, runs: int, warm_up: int, pause: float) -> dict[str, Any]:
    """Start both tools with `clients` clients, and return the seconds of each run, by cell and tool."""
    import ipyparallel
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "dtensor_magic")
    with ipyparallel.Cluster(n=clients) as connection:
        connection.activate()
        shell.run_line_magic("dtensor_init", f"CPU -n {clients} --background")
        seconds: dict[str, dict[str, list[float]]] = {name: {tool: [] for tool in MAGICS} for name in CELLS}
        for turn in range(-warm_up, runs):
            for name in CELLS:
                for tool in reversed(MAGICS) if turn % 2 else MAGICS:
                    # What a tool still does after its cell must not fall into the other's time.
                    time.sleep(pause)
                    taken = _run(shell, name, tool)
                    if turn >= 0:
                        seconds[name][tool].append(taken)
        shell.run_line_magic("dtensor_shutdown", "--all")
    return {"clients": clients, "seconds": seconds}


def _run(shell: Any, name: str, tool: str) -> float:
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        began = time.perf_counter()
        shell.run_cell_magic(MAGICS[tool], "", CELLS[name])
        taken = time.perf_counter() - began
    shown = captured.stdout + "".join(output.data.get("text/plain", "") for output in captured.outputs)
    if EXPECTED[name] not in shown:
        raise RuntimeError(f"the cell {CELLS[name]!r} showed {shown!r} with {tool}")
    return taken


def percentile95(seconds: list[float]) -> float:
    """Return the smallest value that 95 % of the values do not exceed."""
    return sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=report.counts, default=[1, 2, 4, 8], help="client counts (1,2,4,8)")
    parser.add_argument("--runs", type=int, default=100, help="timed runs of each cell (100)")
    parser.add_argument("--warm-up", type=int, default=10, help="runs before that (10)")
    parser.add_argument("--pause", type=float, default=0.05, metavar="S", help="seconds between two cells (0.05)")
    parser.add_argument("--one", action="store_true", help="measure in this very process, and print the JSON")
    options = parser.parse_args()
    if options.one:
        fresh.give(measure(options.clients[0], options.runs, options.warm_up, options.pause))
        return
    results = []
    for clients in options.clients:
        given = {"clients": clients, "runs": options.runs, "warm-up": options.warm_up, "pause": options.pause}
        results.append(fresh.measure(__file__, "--one", *(f"--{name}={value}" for name, value in given.items())))
        print(f"{clients} clients: measured", flush=True)
    _publish(results)


def _publish(results: list[dict[str, Any]]) -> None:
    rows = []
    figures = []
    bars = []
    for result in results:
        clients = result["clients"]
        for name, by_tool in result["seconds"].items():
            median = {tool: statistics.median(by_tool[tool]) * 1e3 for tool in MAGICS}
            late = {tool: percentile95(by_tool[tool]) * 1e3 for tool in MAGICS}
            ratio = median["dtensor_magic"] / median["ipyparallel"]
            rows.append(
                [
                    str(clients),
                    CELLS[name],
                    *(f"{part[tool]:.1f}" for tool in MAGICS for part in (median, late)),
                    f"{ratio:.2f}",
                ]
            )
            figures.append({"clients": clients, "cell": CELLS[name], "median_ms": median, "p95_ms": late})
            if clients in BAR_CLIENTS:
                what = f"{clients} clients, cell {CELLS[name]}: median to ipyparallel's"
                bars.append(report.Bar(what, ratio, BAR))
    header = ["clients", "cell", *(f"{tool} {part}" for tool in MAGICS for part in ("median", "p95")), "ratio"]
    report.publish(
        "cell",
        "Cell: latency of a small cell",
        [
            "Milliseconds from the magic's call to its return, output captured, `%%dtensor` and `%%px` by turns in "
            "one IPython session; the ratio is of the medians. The clients have TensorFlow and DTensor "
            "initialised; the engines have not even imported TensorFlow.",
            report.table(header, rows),
        ],
        bars,
        {"figures": figures},
    )


if __name__ == "__main__":
    main()
