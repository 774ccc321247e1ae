"""What goes wrong with values on the way: deaths, interrupts, no room. Nothing hangs, and nothing is left."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from conftest import everywhere, wait_for

from dtensor_magic import Cluster, shared_memory
from dtensor_magic.errors import CellError, ClientDiedError, ClientsInterruptedError, TransferError
from dtensor_magic.state import Phase

pytestmark = pytest.mark.usefixtures("no_transfer_left")


WAIT = "class Slow:\n    def __reduce__(self):\n        import time\n        time.sleep(60)\n"


@pytest.fixture
def three():
    """Clients that a test may kill."""
    with Cluster.start("CPU", clients=3, mesh="x=3") as started:
        started.run("import numpy as np, os, signal")
        yield started


def test_a_client_that_dies_during_a_pull_is_named(three):
    three.run(
        "class Deadly:\n    def __reduce__(self):\n        if client_id == 1: os.kill(os.getpid(), signal.SIGKILL)\n        return (int, ())\nx = Deadly()"
    )
    with pytest.raises(ClientDiedError, match=r"client 1 of .* was killed by SIGKILL .* while values were pulled"):
        three.pull("x")
    with pytest.raises(ClientDiedError, match=r"client 1 .* before values were pushed"):
        three.push({"a": 1})
    assert three.pull("num_clients") == 3
    assert three.fetch(["num_clients"])["num_clients"].dead.keys() == {1}
    three.push({"a": 1}, on=[0, 2])
    assert three.pull("a") == 1


def test_a_client_that_dies_while_it_takes_a_value_is_named(three):
    class Deadly:
        def __reduce__(self):
            return eval, ("__import__('os').kill(__import__('os').getpid(), 9)",)

    with pytest.raises(ClientDiedError, match=r"client 2 of .* while values were pushed"):
        three.push({"x": Deadly()}, on=[2])


def test_a_dead_clients_shards_are_named_and_the_others_still_come(three):
    three.run(
        "x = dtensor.pack([tf.fill((2, 3), float(client_id))], dtensor.Layout(['x', 'unsharded'], mesh))\n"
        "w = dtensor.copy_to_mesh(tf.range(3), dtensor.Layout.replicated(mesh, 1))"
    )
    assert three.pull("x", on=[0])[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(ClientDiedError):
        three.run("if client_id == 1: os._exit(3)")
    with pytest.raises(
        TransferError, match=r"^x cannot be pulled: its part from index \[2, 0\] on .*client 1 exited with code 3"
    ):
        three.pull("x")
    assert three.pull("w").tolist() == [0, 1, 2]


def test_shards_come_after_a_failure_that_closed_the_collectives(three):
    three.run(
        "x = dtensor.pack([tf.fill((2,), float(client_id))], dtensor.Layout(['x'], mesh)); v = dtensor.DVariable(x)"
    )
    with pytest.raises(CellError):
        three.run("if client_id == 1: raise ValueError\ntf.reduce_sum(x).numpy()")
    assert three.closed_reason
    assert three.pull(["x", "v"])["v"].tolist() == [0, 0, 1, 1, 2, 2]


def interrupt_when(condition):
    """Press Ctrl-C when `condition` holds."""

    def press():
        wait_for(condition, what="the moment to interrupt")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def phase(cluster, client):
    return cluster.state(sample=False).clients[client].phase


def test_a_pull_that_does_not_end_is_interrupted_and_the_clients_work_on(three):
    three.run(WAIT + "slow = Slow() if client_id == 1 else 0")
    interrupt_when(lambda: phase(three, 1) == Phase.BUSY)
    with pytest.raises(ClientsInterruptedError, match="client 1 was interrupted"):
        three.pull("slow", on=[1])
    assert three.pull("num_clients") == 3


def test_an_interrupt_from_elsewhere_ends_a_pull(three):
    three.run(WAIT + "slow = Slow()")

    def elsewhere():
        wait_for(lambda: phase(three, 1) == phase(three, 0) == phase(three, 2) == Phase.BUSY)
        three.interrupt()

    threading.Thread(target=elsewhere, daemon=True).start()
    with pytest.raises(ClientsInterruptedError, match="clients 0-2 were interrupted"):
        three.pull("slow")
    assert three.pull("num_clients") == 3


def test_a_pull_ends_with_a_cluster_that_somebody_ends(three):
    three.run(WAIT + "slow = Slow()")

    def elsewhere():
        wait_for(lambda: phase(three, 1) == Phase.BUSY)
        three.shutdown()

    threading.Thread(target=elsewhere, daemon=True).start()
    with pytest.raises(ClientDiedError):
        three.pull("slow")


def test_a_push_that_does_not_end_is_interrupted_and_nothing_is_bound(three):
    class Slow:
        def __reduce__(self):
            return eval, ("__import__('time').sleep(60)",)

    interrupt_when(lambda: phase(three, 1) == Phase.BUSY)
    with pytest.raises(ClientsInterruptedError):
        three.push({"fine": np.zeros(10000), "slow": Slow()})
    assert everywhere(three, "'fine' in globals()") == "False"


def test_values_wait_for_their_turn_which_can_be_interrupted(three, capsys):
    first = three.run_later("import time; time.sleep(1); late = 5")
    wait_for(lambda: first.state == "running")
    assert three.pull("late") == 5
    assert "queued; " in capsys.readouterr().err
    second = three.run_later("time.sleep(60)")
    wait_for(lambda: second.state == "running")
    interrupt_when(lambda: "queued; " in capsys.readouterr().err)
    with pytest.raises(KeyboardInterrupt):
        three.push({"a": 1})
    second.cancel()
    assert everywhere(three, "'a' in globals()") == "False"


def test_without_room_in_memory_files_go_to_the_agents_folder(three, monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "PLACE", tmp_path / "none")
    three.push({"elsewhere": np.arange(5000)})
    assert three.pull("elsewhere").sum() == 12497500
    monkeypatch.setattr(shared_memory, "_room", lambda place: 1000)
    with pytest.raises(
        TransferError, match=r"^a, b: 0\.\d MB find no room on this host: .*none has 0\.0 MB, .* has 0\.0 MB\.$"
    ):
        three.push({"a": np.zeros(10000), "b": 1})
    monkeypatch.undo()
