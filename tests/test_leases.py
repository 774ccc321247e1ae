"""Clusters that outlive their notebook, and notebooks that take them up again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import gone, wait_for
from notebooks import execute, kernel

from dtensor_magic import Cluster
from dtensor_magic.background import BackgroundCluster
from dtensor_magic.errors import SpecError
from dtensor_magic.records import find_record, live_records

LOAD = "%load_ext dtensor_magic"


def pids_of(manager) -> list[int]:
    return [child.pid for child in psutil.Process(manager.provisioner.pid).children(recursive=True)]


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_restarted_notebook_finds_its_cluster_again(how):
    with kernel() as (manager, client):
        execute(client, f"{LOAD}\n%dtensor_init CPU -n 2 --mesh x=2 --lease 5 --name kept")
        execute(client, "%%dtensor --setup\ndef double(v): return 2 * v")
        execute(client, "%dtensor value = client_id + 40")
        children = pids_of(manager)
        if how == "kill":
            os.kill(manager.provisioner.pid, signal.SIGKILL)
            wait_for(lambda: not manager.is_alive())
            manager.restart_kernel(now=True)
        else:
            manager.restart_kernel()
        client.wait_for_ready(timeout=60)
        _, text = execute(client, f"{LOAD}\n%dtensor_attach")
        assert "kept: ready, 2 CPU clients (multi-client), mesh x=2" in text
        _, text = execute(client, "%dtensor print(value)")
        assert text == "[0] 40\n[1] 41\n"
        _, text = execute(
            client,
            "%dtensor print(int(tf.reduce_sum(dtensor.call_with_layout(tf.ones, dtensor.Layout(['x'], mesh), shape=(2,)))))",
        )
        assert text == "[0-1] 2\n"
        reply, text = execute(client, "%dtensor_restart --keep all")
        assert reply["status"] == "ok", reply
        assert "kept: double, value" in text
        _, text = execute(client, "%dtensor print(double(value))")
        assert text == "[0] 80\n[1] 82\n"
        _, text = execute(client, "%dtensor_shutdown")
        assert text == "ended: kept\n"
        assert find_record("kept") is None
        wait_for(lambda: gone(children), what="clients of the old agent")


def test_output_goes_on_after_an_attach():
    with kernel() as (manager, client):
        execute(client, f"{LOAD}\n%dtensor_init CPU -n 2 --lease 5 --name working")
        client.execute(
            "%%dtensor\nimport time\nprint('begun', flush=True)\n"
            "for i in range(300):\n    time.sleep(0.1)\n    print('tick', i, flush=True)"
        )
        wait_for(lambda: "begun" in str(client.get_iopub_msg(timeout=20)["content"].get("text")))
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        wait_for(lambda: not manager.is_alive())
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=60)
        _, text = execute(client, f"{LOAD}\n%dtensor_attach working")
        assert "working is still at work" in text
        _, text = execute(client, "import time; time.sleep(1)")
        assert "tick" in text
        _, text = execute(client, "%dtensor_interrupt")
        assert "interrupted" in text
        _, text = execute(client, "%dtensor print('free')")
        assert "[0-1] free" in text
        _, text = execute(client, "%dtensor_logs 1 --bytes all")
        assert "begun" in text
        execute(client, "%dtensor_shutdown")


def test_a_lease_ends():
    script = (
        "from dtensor_magic import Cluster\n"
        "c = Cluster.start('CPU', clients=2, lease=0.05, name='brief')\n"
        "print(*[client.pid for client in c.state().clients], flush=True)\nimport os; os._exit(0)"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert not gone(pids)
    assert find_record("brief") is not None
    wait_for(lambda: gone(pids), timeout=10)
    assert time.monotonic() - start > 3
    wait_for(lambda: find_record("brief") is None)


def test_detach_and_attach_in_one_process(capsys):
    cluster = Cluster.start("CPU", clients=2, name="passed")
    cluster.run("x = 5")
    assert isinstance(cluster, BackgroundCluster)
    cluster.detach(5)
    with pytest.raises(SpecError, match="was shut down by %dtensor_detach"):
        cluster.run("1")
    again = BackgroundCluster.attach("passed")
    again.run("print(x)")
    assert capsys.readouterr().out == "[0-1] 5\n"
    again.shutdown()
    assert find_record("passed") is None


def test_a_cluster_can_be_taken_up_after_the_process_that_detached_it_ended(capsys):
    script = (
        "from dtensor_magic import Cluster\n"
        "c = Cluster.start('CPU', clients=2, name='left')\nc.run('x = client_id')\nc.detach(5)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    with BackgroundCluster.attach("left") as cluster:
        cluster.run("print(x)")
    assert capsys.readouterr().out == "[0] 0\n[1] 1\n"


def test_a_cluster_that_a_running_notebook_owns_is_not_taken():
    with Cluster.start("CPU", clients=1, background=True, name="owned"), kernel() as (_, client):
        reply, _ = execute(client, f"{LOAD}\n%dtensor_attach owned")
        assert "belongs to a notebook that runs" in reply["evalue"]
        reply, _ = execute(client, "%dtensor_attach nobody")
        assert "no cluster nobody runs; there is owned" in reply["evalue"]


def test_nothing_to_attach_to_is_said():
    assert [record.name for record in live_records()] == []
    with kernel() as (_, client):
        reply, _ = execute(client, f"{LOAD}\n%dtensor_attach")
        assert "none runs without a notebook" in reply["evalue"]


def test_a_cluster_with_a_dead_client_can_be_taken_up(capsys):
    cluster = Cluster.start("CPU", clients=3, name="wounded")
    cluster.run("value = client_id")
    assert isinstance(cluster, BackgroundCluster)
    os.kill(cluster.state().clients[2].pid, signal.SIGKILL)
    wait_for(lambda: cluster.closed_reason)
    cluster.detach(5)
    again = BackgroundCluster.attach("wounded")
    assert "client 2 was killed by SIGKILL" in again.closed_reason
    again.run("print(value)", on=[0, 1])
    assert capsys.readouterr().out == "[0] 0\n[1] 1\n"
    assert again.restart(keep=["all"]).kept == ["value"]
    again.shutdown()


def test_two_starts_at_once_get_a_name_each():
    script = "from dtensor_magic import Cluster\nwith Cluster.start('CPU', clients=2) as c: print(c.name, flush=True); input()"
    starts = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names = {start.stdout.readline() for start in starts}
    for start in starts:
        start.communicate("\n", timeout=30)
    assert names == {"dtensor-1\n", "dtensor-2\n"}
