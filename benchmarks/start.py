"""Time from the command to the first collective's result, and each client's memory, beside the peers'.

Every start happens in a fresh process, which stands for a notebook kernel: it has ipykernel imported, and
nothing of TensorFlow, dtensor_magic or ipyparallel.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fresh
import ipykernel.kernelapp  # noqa: F401 - a notebook kernel has it, so no way of starting pays for it
import psutil
import report

PROGRAM = Path(__file__).with_name("program.py")

#: The first cell on dtensor_magic's clients, which find their mesh there.
CELL = "from program import collective\ncollective(mesh)"

MB = 1e6


def warm(clients: int) -> dict[str, Any]:
    """dtensor_magic, some seconds after %load_ext: the template has imported TensorFlow."""
    from dtensor_magic import Cluster  # noqa: F401 - loading the extension imports it
    from dtensor_magic.launchers.local import local_agent, python_path
    from dtensor_magic.loop import driver

    env = dict(os.environ)
    driver().call(local_agent().request("agent.warm", env=env, path=python_path(), wait=True))
    template = driver().call(local_agent().request("agent.info"))["template"]
    result = _dtensor_magic(clients)
    if driver().call(local_agent().request("agent.info"))["template"] != template:
        raise RuntimeError("the clients were forked from another template than the one that was warm")
    return result


def cold(clients: int) -> dict[str, Any]:
    """dtensor_magic without an agent: its own import, the agent's start and TensorFlow's import are in the time."""
    return _dtensor_magic(clients)


def _dtensor_magic(clients: int) -> dict[str, Any]:
    began = time.perf_counter()
    from dtensor_magic import Cluster

    cluster = Cluster.start("CPU", clients=clients, background=True, mesh=f"x={clients}")
    ready = time.perf_counter() - began
    results = cluster.run(CELL).results
    seconds = time.perf_counter() - began
    _check((float(result["text/plain"]) for result in results.values()), clients)
    memory = _memory(client.pid for client in cluster.state(sample=False).clients)
    cluster.shutdown()
    return {"seconds": seconds, "ready": ready, **memory}


def by_hand(clients: int) -> dict[str, Any]:
    """N copies of a script, started at once by hand (or by a shell loop)."""
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        copies = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **variables},
            )
            for variables in client_variables(clients)
        ]
        try:
            lines = [copy.stdout.readline() for copy in copies if copy.stdout]
            seconds = time.perf_counter() - began
            if not all(lines):
                log.seek(0)
                raise RuntimeError(f"a hand-launched copy failed: {log.read()[-3000:]}")
            _check(map(float, lines), clients)
            return {"seconds": seconds, **_memory(copy.pid for copy in copies)}
        finally:
            for copy in copies:
                copy.kill()
                copy.wait()


def ipyparallel(clients: int) -> dict[str, Any]:
    """N ipyparallel engines, each of which is then made a DTensor client."""
    began = time.perf_counter()
    import ipyparallel

    with ipyparallel.Cluster(n=clients) as connection:
        ready = time.perf_counter() - began
        pending = [
            connection[engine].apply_async(_in_engine, variables, str(PROGRAM.parent))
            for engine, variables in zip(connection.ids, client_variables(clients), strict=True)
        ]
        answers = [answer.get() for answer in pending]
        seconds = time.perf_counter() - began
        _check((total for total, _ in answers), clients)
        memory = _memory(pid for _, pid in answers)
    return {"seconds": seconds, "ready": ready, **memory}


def _in_engine(variables: dict[str, str], folder: str) -> tuple[float, int]:
    import os
    import sys

    os.environ.update(variables)
    sys.path.insert(0, folder)
    from program import initialise_and_sum

    return initialise_and_sum(), os.getpid()


def client_variables(clients: int) -> list[dict[str, str]]:
    """Return each client's ``DTENSOR_*`` variables; none for a single one, which is TensorFlow's local mode."""
    if clients == 1:
        return [{}]
    sockets = [socket.create_server(("", 0)) for _ in range(clients)]
    jobs = ",".join(f"localhost:{held.getsockname()[1]}" for held in sockets)
    for held in sockets:
        held.close()
    return [
        {"DTENSOR_JOBS": jobs, "DTENSOR_CLIENT_ID": str(client), "DTENSOR_NUM_CLIENTS": str(clients)}
        for client in range(clients)
    ]


def _check(totals: Iterable[float], clients: int) -> None:
    found = list(totals)
    if found != [clients * (clients + 1) / 2] * clients:
        raise RuntimeError(f"the collective of {clients} clients gave {found}")


def _memory(clients: Iterable[int | None]) -> dict[str, Any]:
    """Return the proportional memory of each client, and of all that this process started, in MB."""
    pss = [psutil.Process(pid).memory_full_info().pss / MB for pid in clients]
    everything = sum(child.memory_full_info().pss for child in psutil.Process().children(recursive=True)) / MB
    return {"pss": pss, "pss_of_all_processes": everything}


WAYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "warm": warm,
    "cold": cold,
    "by hand": by_hand,
    "ipyparallel": ipyparallel,
}
OURS = ("warm", "cold")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=report.counts, default=[1, 2, 4, 8], help="client counts (1,2,4,8)")
    parser.add_argument("--repeat", type=int, default=1, metavar="K", help="take the median of K starts (1)")
    parser.add_argument("--skip-ipyparallel", action="store_true", help="leave ipyparallel out")
    parser.add_argument("--one", choices=WAYS, help="measure one start, in this very process, and print its JSON")
    options = parser.parse_args()
    if options.one:
        fresh.give(WAYS[options.one](options.clients[0]))
        return
    ways = [way for way in WAYS if not (way == "ipyparallel" and options.skip_ipyparallel)]
    # TensorFlow's 1 GB is read from the disk once, for nobody's account.
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, stderr=subprocess.DEVNULL)
    runs = []
    for repeat in range(options.repeat):
        for clients in options.clients:
            for way in ways:
                run = fresh.measure(__file__, "--one", way, "--clients", str(clients))
                runs.append({"clients": clients, "way": way, **run})
                print(f"run {repeat + 1}: {clients} clients, {way}: {run['seconds']:.2f} s", flush=True)
    _publish(runs, options.clients, ways)


def _publish(runs: list[dict[str, Any]], client_counts: list[int], ways: list[str]) -> None:
    def median(clients: int, way: str, figure: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(figure(run) for run in runs if run["clients"] == clients and run["way"] == way)

    seconds = {(n, way): median(n, way, lambda run: run["seconds"]) for n in client_counts for way in ways}
    pss = {(n, way): median(n, way, lambda run: statistics.mean(run["pss"])) for n in client_counts for way in ways}
    peers = [way for way in ways if way not in OURS]
    pairs = [(our, peer) for our in OURS for peer in peers]
    speed = report.table(
        ["clients", *ways, *(f"{peer} / {our}" for our, peer in pairs)],
        (
            [
                str(n),
                *(f"{seconds[n, way]:.2f}" for way in ways),
                *(f"{seconds[n, peer] / seconds[n, our]:.1f}x" for our, peer in pairs),
            ]
            for n in client_counts
        ),
    )
    shares = report.table(
        ["clients", *(f"{way} {part}" for way in ways if way != "by hand" for part in ("ready", "then"))],
        (
            [
                str(n),
                *(
                    f"{figure:.2f}"
                    for way in ways
                    if way != "by hand"
                    for ready in [median(n, way, lambda run: run["ready"])]
                    for figure in (ready, seconds[n, way] - ready)
                ),
            ]
            for n in client_counts
        ),
    )
    memory_ways = [way for way in ways if way != "cold"]
    memory = report.table(
        [
            "clients",
            *memory_ways,
            *(f"warm / {peer}" for peer in peers),
            *(f"{way}, in all" for way in memory_ways),
        ],
        (
            [
                str(n),
                *(f"{pss[n, way]:.0f}" for way in memory_ways),
                *(f"{pss[n, 'warm'] / pss[n, peer]:.2f}" for peer in peers),
                *(f"{median(n, way, lambda run: run['pss_of_all_processes']):.0f}" for way in memory_ways),
            ]
            for n in client_counts
        ),
    )
    bars = []
    if 8 in client_counts:
        limits = {"warm": 10, "cold": 3}
        bars = [
            report.Bar(
                f"8 clients, {our} start, times faster than {peer}",
                seconds[8, peer] / seconds[8, our],
                limits[our],
                at_least=True,
            )
            for our, peer in pairs
        ]
        bars.append(
            report.Bar(
                "8 clients, PSS per client to a hand-launched one's", pss[8, "warm"] / pss[8, "by hand"], 0.4
            )
        )
    report.publish(
        "start",
        "Start: from the command to the first collective",
        [
            "Seconds from the command to the first collective's result on all clients.",
            speed,
            'Of these, seconds until the command returned ("ready"; ipyparallel: engines without TensorFlow), '
            'and "then" until the result.',
            shares,
            'PSS per client, MB, after the first collective; "in all" adds up every process of that way: '
            "dtensor_magic's agent and template, ipyparallel's controller.",
            memory,
        ],
        bars,
        {"runs": runs},
    )


if __name__ == "__main__":
    main()
