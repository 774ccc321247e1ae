"""Push and pull of a NumPy array: `Cluster.push` and `pull` beside ipyparallel's `DirectView.push` and `pull`.

The two take turns in one process, so that both see the same machine. The clients have TensorFlow and DTensor
initialised; the engines have imported NumPy alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import fresh
import numpy as np
import psutil
import report

#: Bytes of a megabyte here, and the size from which only one client's array is pulled: more do not fit.
MB = 10**6
LARGE = 500

#: The bars: times ipyparallel's rate, at these client counts; and how much memory may grow, in arrays.
RATE_BAR, MEMORY_BAR = 5, 1.1

#: Arrays per engine that ipyparallel needs room for on the way of a push: seen at 4 engines.
ROOM = 2.5
BAR_CLIENTS = (4, 8)

#: What every client or engine runs on its array, so that all of it is read.
SUM = "total = float(array.sum())"

#: What is measured, by the name that the table gives it.
PUSH, READ, PULL, PULL_ALL = "push", "push, then a sum", "pull from one", "pull from all"
GROWN, SHARED = "memory, in arrays", "shared memory, in arrays"


class Ours:
    """dtensor_magic's clients."""

    def __init__(self, clients: int) -> None:
        from dtensor_magic import Cluster

        self._cluster = Cluster.start("CPU", clients=clients, background=clients == 1)
        # So that the first time is not that of TensorFlow's context.
        self.run("tf.constant(1)")

    def push(self, array: np.ndarray) -> None:
        """Give every client the array."""
        self._cluster.push({"array": array})

    def pull(self, name: str, client: int | None) -> Any:
        """Return what one client has, or, by client, what all have."""
        return self._cluster.pull(name, None if client is None else [client])

    def run(self, code: str) -> None:
        """Run code on all."""
        self._cluster.run(code, output="none")

    def give(self, code: str) -> list[Any]:
        """Return the values of an expression on all."""
        self.run(f"given = {code}")
        found = self._cluster.pull("given")
        return list(found.values()) if isinstance(found, dict) or hasattr(found, "groups") else [found]

    def processes(self) -> list[psutil.Process]:
        """Return the processes that hold the arrays."""
        return [psutil.Process(client.pid) for client in self._cluster.state(sample=False).clients]


class Theirs:
    """ipyparallel's engines."""

    def __init__(self, clients: int) -> None:
        import ipyparallel

        self._client = ipyparallel.Cluster(n=clients, log_level=50).start_and_connect_sync()
        self._view = self._client[:]
        self.run("import numpy as np, os; client_id = 0")
        for engine in self._client.ids:
            self._client[engine].push({"client_id": engine}, block=True)

    def push(self, array: np.ndarray) -> None:
        """Give every client the array."""
        self._view.push({"array": array}, block=True)

    def pull(self, name: str, client: int | None) -> Any:
        """Return what one client has, or, by client, what all have."""
        view = self._view if client is None else self._client[client]
        found = view.pull(name, block=True)
        return dict(enumerate(found)) if client is None else found

    def run(self, code: str) -> None:
        """Run code on all."""
        self._view.execute(code, block=True)

    def give(self, code: str) -> list[Any]:
        """Return the values of an expression on all."""
        self.run(f"given = {code}")
        return list(self._view.pull("given", block=True))

    def processes(self) -> list[psutil.Process]:
        """Return the processes that hold the arrays."""
        return [psutil.Process(pid) for pid in self._view.apply_sync(_pid)]


def _pid() -> int:
    import os

    return os.getpid()


TOOLS: dict[str, Callable[[int], Any]] = {"dtensor_magic": Ours, "ipyparallel": Theirs}


def measure(tools: list[str], clients: int, megabytes: int, repeat: int) -> dict[str, Any]:
    """Return, by tool, the seconds of each kind of transfer, and the memory that a push takes on all together."""
    sides = {tool: TOOLS[tool](clients) for tool in tools}
    array = np.random.default_rng(megabytes).random(megabytes * MB // 8)
    found: dict[str, dict[str, list[float]]] = {tool: {} for tool in tools}
    for turn in range(-1, repeat):
        for tool in reversed(tools) if turn % 2 else tools:
            for what, figure in _once(sides[tool], clients, array).items():
                # The first turn pays for what is done once.
                if turn >= 0:
                    found[tool].setdefault(what, []).append(figure)
    return found


def _once(side: Any, clients: int, array: np.ndarray) -> dict[str, float]:
    figures: dict[str, float] = {}

    def timed(what: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        figures[what] = time.perf_counter() - began
        return result

    processes = side.processes()
    before, shmem = _pss(processes), _shmem()
    timed(PUSH, lambda: side.push(array))
    timed(READ, lambda: side.run(SUM))
    figures[READ] += figures[PUSH]
    figures[GROWN] = (_pss(processes) - before) / array.nbytes
    figures[SHARED] = (_shmem() - shmem) / array.nbytes
    if set(side.give("total")) != {float(array.sum())}:
        raise RuntimeError("what was pushed is not what came")
    back = timed(PULL, lambda: side.pull("array", clients - 1))
    if not np.array_equal(back, array):
        raise RuntimeError("what was pulled is not what was there")
    del back
    if array.nbytes < LARGE * MB:
        side.run("array = array + client_id")
        back = timed(PULL_ALL, lambda: side.pull("array", None))
        if clients > 1 and not all(np.array_equal(back[client], array + client) for client in range(clients)):
            raise RuntimeError("what was pulled from all is not what was there")
    side.run("array = None")
    return figures


def _pss(processes: list[psutil.Process]) -> int:
    return sum(process.memory_full_info().pss for process in processes)


def _shmem() -> int:
    return int(psutil.virtual_memory().shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=report.counts, default=[4, 8], help="client counts (4,8)")
    parser.add_argument("--megabytes", type=report.counts, default=[64, 1000], help="the array's sizes (64,1000)")
    parser.add_argument(
        "--repeat", type=int, default=5, metavar="K", help="turns of each tool (5); 2 from 500 MB on"
    )
    parser.add_argument("--skip-ipyparallel", action="store_true", help="leave ipyparallel out")
    parser.add_argument("--one", metavar="TOOLS", help="measure in this very process, and print the JSON")
    options = parser.parse_args()
    if options.one:
        tools = options.one.split(",")
        fresh.give(measure(tools, options.clients[0], options.megabytes[0], options.repeat))
        return
    runs: dict[tuple[int, int], dict[str, Any]] = {}
    for megabytes in options.megabytes:
        for clients in options.clients:
            tools = list(TOOLS)[: 1 if options.skip_ipyparallel else 2]
            room = psutil.virtual_memory().available / MB
            if clients * megabytes * ROOM > room:
                print(f"{megabytes} MB, {clients} clients: no room for ipyparallel in {room:,.0f} MB", flush=True)
                tools = tools[:1]
            repeat = options.repeat if megabytes < LARGE else min(options.repeat, 2)
            given = {"clients": clients, "megabytes": megabytes, "repeat": repeat}
            words = [f"--{name}={value}" for name, value in given.items()]
            runs[clients, megabytes] = fresh.measure(__file__, "--one", ",".join(tools), *words)
            print(f"{megabytes} MB, {clients} clients: measured", flush=True)
    _publish(runs)


def _publish(runs: dict[tuple[int, int], dict[str, Any]]) -> None:
    rows, memory, bars = [], [], []
    for (clients, megabytes), run in runs.items():
        ours = {what: statistics.median(figures) for what, figures in run["dtensor_magic"].items()}
        theirs = {what: statistics.median(figures) for what, figures in run.get("ipyparallel", {}).items()}
        for what in (PUSH, READ, PULL, PULL_ALL):
            if what not in ours:
                continue
            copies = 1 if what == PULL else clients
            row = [what, str(megabytes), str(clients), *_time(ours[what], copies * megabytes)]
            if theirs:
                ratio = theirs[what] / ours[what]
                row += [*_time(theirs[what], copies * megabytes), f"{ratio:.1f}x"]
                if clients in BAR_CLIENTS and what != READ:
                    name = f"{what}, {megabytes} MB, {clients} clients: rate to ipyparallel's"
                    bars.append(report.Bar(name, ratio, RATE_BAR, at_least=True))
            rows.append([*row, *["-"] * (8 - len(row))])
        others = f"{theirs[GROWN]:.2f}" if theirs else "-"
        memory.append([str(megabytes), str(clients), f"{ours[GROWN]:.2f}", f"{ours[SHARED]:.2f}", others])
        bars.append(report.Bar(f"push, {megabytes} MB, {clients} clients: {GROWN}", ours[GROWN], MEMORY_BAR))
    columns = ["dtensor_magic", "MB/s", "ipyparallel", "MB/s", "ratio"]
    report.publish(
        "values",
        "Values: push and pull of an array",
        [
            "Seconds from the call to its return, medians of turns in one process, and megabytes per second over "
            "all copies that arrive. A push of dtensor_magic returns when every client has mapped the array, so "
            'the time until each has summed it is told too. "pull from all": every client has another array.',
            report.table(["what", "MB", "clients", *columns], rows),
            "How much the clients' or engines' memory (PSS, in all) grows by a push, once each has summed the "
            "array, in sizes of the array; and by how much the host's shared memory does, which is part of it.",
            report.table(["MB", "clients", "dtensor_magic", "of it shared", "ipyparallel"], memory),
        ],
        bars,
        {"runs": [{"clients": n, "MB": size, **run} for (n, size), run in runs.items()]},
    )


def _time(seconds: float, megabytes: int) -> list[str]:
    return [f"{seconds:.3f}", f"{megabytes / seconds:,.0f}"]


if __name__ == "__main__":
    main()
