"""The sides that `recover.py` measures: dtensor_magic's clients, and ipyparallel's engines as DTensor clients."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from situations import CLIENTS, FAILURES, SETTLE, SETUP, noted
from start import client_variables


class Ours:
    """dtensor_magic's clients."""

    def __init__(self, folder: Path, limit: float) -> None:
        from dtensor_magic import Cluster

        del limit  # it ends by itself, or the measurement fails
        self.folder = folder
        self.cluster = Cluster.start("CPU", clients=CLIENTS, mesh=f"x={CLIENTS}")
        self.cluster.run(SETUP.format(folder=str(folder)), output="none")

    def fail(self, code: str, notes: int) -> dict[str, Any]:
        """Return the seconds from a failure to the cell's end."""
        from dtensor_magic.errors import DTensorMagicError

        try:
            self.cluster.run(code, output="none")
        except DTensorMagicError as error:
            ended = time.monotonic()
            said = str(error)
        return {"seconds": ended - noted(self.folder, notes), "said": said, "grace": self.cluster.fail_grace}

    def interrupt(self, code: str) -> dict[str, Any]:
        """Return the seconds from a Ctrl-C, as the stop button sends it, to the cell's end."""
        from dtensor_magic.errors import ClientsInterruptedError, describe_outcomes

        pressed: list[float] = []

        def press() -> None:
            noted(self.folder, CLIENTS)
            time.sleep(SETTLE)
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        try:
            self.cluster.run(code, output="none")
        except ClientsInterruptedError as error:
            ended = time.monotonic()
            outcomes = error.outcomes
        alive = [client for client, what in outcomes.items() if "killed" not in what]
        answers = self.cluster.run("client_id", on=alive, output="none").results
        if sorted(answers) != alive:
            raise RuntimeError(f"clients {alive} should take cells again, {sorted(answers)} do")
        return {"seconds": ended - pressed[0], "said": describe_outcomes(outcomes)}

    def rebuild(self, megabytes: int) -> dict[str, Any]:
        """Return the seconds until new clients have these variables, after a failure that closed the mesh."""
        from dtensor_magic.errors import CellError

        self.cluster.run("import state", output="none", setup=True)
        self.cluster.run(f"variables = state.make(mesh, {megabytes})", output="none")
        before = self.cluster.run("state.digest(variables)", output="none").results
        try:
            self.cluster.run(FAILURES["client 1 raises"], output="none")
        except CellError:
            began = time.monotonic()
        kept = self.cluster.restart(keep=["all"])
        seconds = time.monotonic() - began
        after = self.cluster.run("state.digest(variables)", output="none").results
        if after != before or kept is None or kept.lost:
            raise RuntimeError(f"what was kept is not what was there: {kept}")
        return {"seconds": seconds, "said": str(kept)}


class Theirs:
    """ipyparallel's engines, each made a DTensor client."""

    #: Whether a rebuild begins with a SIGKILL to all engines.
    kill_first = False

    def __init__(self, folder: Path, limit: float) -> None:
        import ipyparallel

        self.folder = folder
        self.limit = limit
        self.client = ipyparallel.Cluster(n=CLIENTS, log_level=50).start_and_connect_sync()
        self._initialise()
        self._all(SETUP.format(folder=str(folder)))

    def _initialise(self) -> None:
        code = "\n".join(
            [
                "import os, sys",
                "os.environ.update({variables!r})",
                f"sys.path.insert(0, {str(Path(__file__).parent)!r})",
                "import program",
                "from program import dtensor, tf",
                "mesh, client_id = program.initialise(), dtensor.client_id()",
            ]
        )
        engines = zip(sorted(self.client.ids), client_variables(CLIENTS), strict=True)
        for answer in [
            self.client[engine].execute(code.format(variables=own), block=False) for engine, own in engines
        ]:
            answer.get()

    def _all(self, code: str) -> None:
        self.client[:].execute(code, block=True)

    def fail(self, code: str, notes: int) -> dict[str, Any]:
        """Return the seconds from a failure to the cell's end, None if it does not end."""
        answer = self.client[:].execute(code, block=False)
        began = noted(self.folder, notes)
        return self._end(answer, began)

    def interrupt(self, code: str) -> dict[str, Any]:
        """Return the seconds from a SIGINT to all engines to the cell's end, None if it does not end."""
        answer = self.client[:].execute(code, block=False)
        noted(self.folder, CLIENTS)
        time.sleep(SETTLE)
        began = time.monotonic()
        self.client.cluster.signal_engines_sync(signal.SIGINT)
        return self._end(answer, began)

    def _end(self, answer: Any, began: float) -> dict[str, Any]:
        from ipyparallel.error import CompositeError

        if not answer.wait(self.limit):
            return {"seconds": None, "said": f"{answer.progress} of {CLIENTS} engines done"}
        ended = time.monotonic()
        try:
            answer.get()
        except CompositeError as error:
            return {"seconds": ended - began, "said": str(error)}
        raise RuntimeError("the cell ended well")

    def rebuild(self, megabytes: int) -> dict[str, Any]:
        """Return the seconds until there are new engines with these variables, which this process carries over."""
        self._all(f"import state\nvariables = state.make(mesh, {megabytes})\ndigest = state.digest(variables)")
        before = self.client[:]["digest"]
        began = time.monotonic()
        old = set(self.client.ids)
        parts = self._pull() if megabytes else []
        if self.kill_first:
            self.client.cluster.signal_engines_sync(signal.SIGKILL)
        self.client.cluster.restart_engines_sync()
        while old & set(self.client.ids) or len(self.client.ids) < CLIENTS:
            time.sleep(0.01)
        ready = time.monotonic() - began
        self._initialise()
        self._all("import state\nvariables = {}")
        if megabytes:
            self._push(parts)
        seconds = time.monotonic() - began
        self._all("digest = state.digest(variables)")
        if self.client[:]["digest"] != before:
            raise RuntimeError("what was carried over is not what was there")
        return {"seconds": seconds, "ready": ready, "said": ""}

    def _pull(self) -> list[dict[str, Any]]:
        """Return the parts for each engine: its own shards, and the replicas, which are fetched from one engine."""
        self._all("shards, replicas = (state.parts_of(variables, [kind]) for kind in ('sharded', 'replicated'))")
        replicas = self.client[min(self.client.ids)]["replicas"]
        return [{**replicas, **shards} for shards in self.client[:]["shards"]]

    def _push(self, parts: list[dict[str, Any]]) -> None:
        engines = sorted(self.client.ids)
        pushes = [
            self.client[engine].push({"parts": own}, block=False)
            for engine, own in zip(engines, parts, strict=True)
        ]
        for push in pushes:
            push.get()
        self._all("variables = state.pack(mesh, parts)")


class TheirsKilled(Theirs):
    """The same; but engines that ran DTensor do not heed the SIGTERM of a restart, so they are killed first."""

    kill_first = True
