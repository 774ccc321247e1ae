"""What the panel costs: CPU of the notebook kernel and of the agent, with a view of the panel and without one.

A real notebook kernel shows the panel of a cluster; the view is one that the kernel is told of, as a page does it.
CPU is the processes' own time, so other load on the machine does not count.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import psutil
import report
from jupyter_client.manager import KernelManager

BAR = 1.0

#: What the cluster does while it is measured, by the name that the table gives it.
CELLS = {
    "idle": "",
    "busy": "%%dtensor\nimport time; time.sleep({seconds})",
    "waiting": (
        "%%dtensor\nimport time\nx = dtensor.pack([tf.ones([1])], dtensor.Layout(['x'], mesh))\n"
        "if client_id == 0: time.sleep({seconds})\nfloat(tf.reduce_sum(x))"
    ),
}

_SETUP = """
%load_ext dtensor_magic
import dtensor_magic.panel.presence as presence
presence.ASK = 1e9  # no page is there to answer
cluster = get_ipython().run_line_magic("dtensor_init", "CPU -n {clients} --mesh x={clients}")
get_ipython().run_line_magic("dtensor_panel", "")
panel = get_ipython().magics_manager.registry["PictureMagics"]._panel
from dtensor_magic.launchers.local import current_agent
print(current_agent().process.pid)
"""


def measure(clients: int, seconds: float) -> list[dict[str, Any]]:
    """Return the percent of a core that each process used, by view and situation."""
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        agent = psutil.Process(int(_run(client, _SETUP.format(clients=clients)).split()[-1]))
        kernel = next(p for p in agent.parents() if "ipykernel" in " ".join(p.cmdline()))
        found = []
        for name, cell in CELLS.items():
            for views in (0, 1):
                _run(client, f"panel.box._view_count = {views}")
                code = cell.format(seconds=seconds)
                client.execute(code)
                # The cell's start is no part of what looking on costs.
                time.sleep(1.0)
                before = [_used(process) for process in (kernel, agent)]
                began = time.monotonic()
                time.sleep(seconds - 2.0)
                span = time.monotonic() - began
                used = [(_used(p) - b) / span * 100 for p, b in zip((kernel, agent), before, strict=True)]
                _run(client, "")
                found.append({"cluster": name, "views": views, "kernel": used[0], "agent": used[1]})
        return found
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _run(client: Any, code: str) -> str:
    said: list[str] = []

    def hook(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=120, output_hook=hook)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(f"{code!r}: {reply['content']['ename']}: {reply['content']['evalue']}")
    return "".join(said)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8, help="client count (8)")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each situation (20)")
    options = parser.parse_args()
    found = measure(options.clients, options.seconds)
    by_view = {(one["cluster"], one["views"]): one for one in found}
    rows, bars = [], []
    for name in CELLS:
        without, seen = (by_view[name, views] for views in (0, 1))
        cost = seen["kernel"] + seen["agent"] - without["kernel"] - without["agent"]
        rows.append(
            [name, *(f"{one[part]:.2f}" for one in (without, seen) for part in ("kernel", "agent")), f"{cost:.2f}"]
        )
        bars.append(report.Bar(f"{options.clients} clients, {name}: percent of a core for a view", cost, BAR))
    report.publish(
        "panel",
        "Panel: what looking on costs",
        [
            "Percent of one core, of the notebook kernel and of the host agent, without a view of the panel and "
            "with one; the cost is the difference. idle: no cell runs. busy: all clients sleep in a cell. waiting: "
            "all but one wait in a collective.",
            report.table(
                ["cluster", "kernel, no view", "agent, no view", "kernel, a view", "agent, a view", "cost"], rows
            ),
        ],
        bars,
        {"figures": found},
    )


if __name__ == "__main__":
    main()
