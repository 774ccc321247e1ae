"""``dtensor-magic list`` and ``stop``, beside a cluster that another process owns."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import wait_for

from dtensor_magic import Cluster
from dtensor_magic.errors import ClusterStateError, SpecError
from dtensor_magic.records import find_record
from dtensor_magic.state import ClusterPhase


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dtensor_magic.cli", *arguments], capture_output=True, text=True, timeout=30
    )


def test_without_clusters():
    assert cli("list").stdout == "no cluster runs.\n"
    assert json.loads(cli("list", "--json").stdout) == []
    assert cli("stop", "--all").stdout == "no cluster runs.\n"


def test_list_and_stop_from_outside():
    cluster = Cluster.start("CPU", clients=2, mesh="batch=2", name="seen")
    shown = cli("list")
    assert shown.returncode == 0
    assert "seen: ready, 2 CPU clients (multi-client), mesh batch=2" in shown.stdout
    (state,) = json.loads(cli("list", "--json").stdout)
    assert [client["phase"] for client in state["clients"]] == ["ready", "ready"]
    assert cli("stop", "seen").stdout == "ended: seen\n"
    assert find_record("seen") is None
    wait_for(lambda: not cluster.alive)
    with pytest.raises(SpecError, match="seen was shut down by dtensor-magic stop"):
        cluster.run("1")
    cluster.shutdown()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stop"], "name the clusters to end, or say --all"),
        (["stop", "x", "--all"], "name the clusters to end, or say --all"),
        (["stop", "nobody"], "no cluster nobody runs; there is none"),
    ],
)
def test_mistakes_are_one_line(arguments, says):
    done = cli(*arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_cell_that_runs_while_its_cluster_is_stopped_from_outside_says_so():
    cluster = Cluster.start("CPU", clients=2, name="stopped")
    handle = cluster.run_later("import time; time.sleep(60)")
    wait_for(lambda: cluster.state(sample=False).phase == ClusterPhase.BUSY)
    assert cli("stop", "stopped").stdout == "ended: stopped\n"
    with pytest.raises(ClusterStateError, match="stopped was shut down by dtensor-magic stop while this cell ran"):
        handle.wait(5)
