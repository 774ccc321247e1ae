"""One client's mistake costs a second and no state: a matrix of faults times what must hold."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from conftest import gone, our_processes, wait_for

from dtensor_magic import Cluster
from dtensor_magic.errors import (
    CellError,
    CellTimeoutError,
    ClientDiedError,
    ClientsInterruptedError,
    ClusterStateError,
)
from dtensor_magic.state import Phase

SETUP = """
import os, signal, sys, time, threading, ctypes
import numpy as np
rng = np.random.default_rng(7)
sharded = dtensor.Layout(["x", "unsharded"], mesh)
replicated = dtensor.Layout.replicated(mesh, 2)
values = rng.normal(size=(4 * num_clients, 3)).astype("float32")
x = dtensor.pack([tf.constant(values[4 * client_id:4 * client_id + 4])], sharded)
v = dtensor.DVariable(x, name="v")
w = dtensor.DVariable(dtensor.copy_to_mesh(tf.constant(values), replicated), name="w")
own = {"client": client_id, "array": values * client_id}
"""

# A mutex locked twice, in native code that keeps the interpreter's lock: no Python runs, no signal ends the wait.
DEADLOCK = "native = ctypes.PyDLL(None); mutex = ctypes.create_string_buffer(64); native.pthread_mutex_lock(mutex); native.pthread_mutex_lock(mutex)"

COLLECTIVE = "total = float(tf.reduce_sum(x))"

CHECK = """
import hashlib
assert np.array_equal(dtensor.unpack(w.read_value())[0].numpy(), values)
print(w.name, w.layout.sharding_specs, own["client"] == client_id, hashlib.sha1(own["array"].tobytes()).hexdigest()[:6] if client_id == 1 else "")
"""

CHECK_SHARDS = """
first = 4 * client_id * values.shape[0] // (4 * num_clients)
for tensor in (x, v.read_value()):
    assert np.array_equal(dtensor.unpack(tensor)[0].numpy(), np.split(values, num_clients)[client_id])
print(v.layout.sharding_specs, float(tf.reduce_sum(x)) == float(tf.reduce_sum(v)))
"""


@pytest.fixture
def three():
    """Three clients with tensors and host values to lose."""
    with Cluster.start("CPU", clients=3, mesh="x=3") as cluster:
        cluster.run(SETUP)
        yield cluster


def failing(cluster, code, **options):
    """Run `code`, which must fail; return the error and the seconds that it took."""
    start = time.monotonic()
    with pytest.raises((CellError, ClientDiedError, CellTimeoutError, ClientsInterruptedError)) as caught:
        cluster.run(code, **options)
    return caught.value, time.monotonic() - start


def works_after_rebuild(cluster, capsys, *, shards=True):
    start = time.monotonic()
    report = cluster.restart(keep=["all"])
    assert time.monotonic() - start < 10
    capsys.readouterr()
    cluster.run(CHECK, output="none")
    if shards:
        assert "x" in report.kept
        assert "v" in report.kept
        cluster.run(CHECK_SHARDS)
        assert "True" in capsys.readouterr().out
    return report


@pytest.mark.parametrize("where", ["before", "after"])
def test_one_client_raises_and_its_peers_are_released(three, capsys, where):
    code = {
        "before": f"if client_id == 1: raise ValueError('mine')\n{COLLECTIVE}",
        "after": f"{COLLECTIVE}\nif client_id == 1: raise ValueError('mine')\n{COLLECTIVE}",
    }[where]
    error, seconds = failing(three, code)
    assert seconds < three.fail_grace + 3
    assert (error.clients, error.ename) == ((1,), "ValueError")
    assert "clients 0, 2 were released" in "\n".join(error._render_traceback_())
    assert "%dtensor_restart --keep all" in error.hint
    works_after_rebuild(three, capsys)


def test_a_collective_that_fails_on_all_is_shown_once_and_the_mesh_stays(three, capsys):
    error, _ = failing(three, "tf.matmul(x, x)")
    assert error.clients == (0, 1, 2)
    assert error.others == {}
    assert error.hint == ""
    three.run(COLLECTIVE)


def test_the_same_exception_everywhere_costs_nothing(three):
    error, seconds = failing(three, f"{COLLECTIVE}\nraise RuntimeError('all')")
    assert error.clients == (0, 1, 2)
    assert seconds < 2
    assert three.closed_reason == ""
    three.run(COLLECTIVE)


def test_a_raise_while_peers_compute_does_not_disturb_them(three, capsys):
    error, seconds = failing(
        three,
        "if client_id == 0: raise KeyError('early')\nend = time.time() + 4\nwhile time.time() < end: np.dot(values, values.T)\nprint('computed')",
    )
    assert error.clients == (0,)
    assert error.others == {}
    assert seconds > 4
    assert "[1-2] computed" in capsys.readouterr().out
    assert three.closed_reason == ""
    three.run(COLLECTIVE)


@pytest.mark.long
def test_honest_computation_is_never_called_hung(three, capsys):
    three.run(
        "if client_id == 2:\n    end = time.time() + 20\n    while time.time() < end: np.linalg.svd(np.ones((60, 60)))\n"
        + COLLECTIVE
    )
    assert "no progress" not in capsys.readouterr().err
    assert three.closed_reason == ""


@pytest.mark.parametrize("victim", [0, 2])
def test_a_client_killed_in_a_collective_is_the_culprit(three, capsys, victim):
    error, seconds = failing(
        three,
        f"if client_id == {victim}:\n    time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)\n{COLLECTIVE}",
    )
    assert isinstance(error, ClientDiedError)
    assert error.client == victim
    assert "was killed by SIGKILL" in str(error)
    assert seconds < three.fail_grace + 4
    report = works_after_rebuild(three, capsys, shards=False)
    assert {"w", "own", "values"} <= set(report.kept)
    assert "was on no client that lives" in report.lost["x"]
    three.run("assert 'x' not in globals()")
    assert any(f"client {victim} was killed" in note for note in report.notes)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os._exit(3)", "exited with code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV (a crash in native code)"),
        ("os.abort()", "was killed by SIGABRT"),
        ("exit()", "called exit() and ended"),
        ("ctypes.string_at(0)", "was killed by SIGSEGV"),
    ],
)
def test_each_way_to_end_is_named_as_what_it_is(three, code, says):
    error, _ = failing(
        three, f"# the last words\nif client_id == 1:\n    print('bye', flush=True)\n    {code}\n    time.sleep(5)"
    )
    assert error.client == 1
    assert says in str(error)
    assert "the last words" in str(error)
    assert "bye" in "\n".join(error._render_traceback_())


def test_sys_exit_is_an_exception_and_the_client_lives(three):
    error, _ = failing(three, "if client_id == 1: sys.exit(4)")
    assert (error.clients, error.ename) == ((1,), "SystemExit")
    three.run(COLLECTIVE)


def test_the_hang_detective_says_who_waits_where_and_who_finished(three, capsys):
    failing(three, f"if client_id != 1:\n    {COLLECTIVE}", timeout=5)
    said = capsys.readouterr().err
    assert "no progress: clients 0, 2 wait in __float__ at line 2 (total = float(tf.reduce_sum(x)))" in said
    assert "client 1 finished the cell" in said
    assert said.count("no progress") == 1


def test_a_collective_without_all_clients_is_explained(three, capsys):
    failing(three, COLLECTIVE, on=[0], timeout=5)
    assert "clients 1-2 did not get the cell (--on)" in capsys.readouterr().err


@pytest.mark.long
def test_waiting_in_different_places_and_for_an_idle_client_is_told(three, capsys):
    code = (
        "if client_id == 0:\n    float(tf.reduce_sum(x))\n"
        "elif client_id == 1:\n    threading.Event().wait()\n"
        "else:\n    print(tf.reduce_sum(x))"
    )
    failing(three, code, timeout=13)
    said = capsys.readouterr().err
    assert "client 0 waits in __float__ at line 2 (float(tf.reduce_sum(x)))" in said
    assert "client 2 waits in __str__ at line 6 (print(tf.reduce_sum(x)))" in said
    assert "client 1 is idle in wait at line 4 (threading.Event().wait())" in said


def test_collectives_that_do_not_match_close_the_mesh_and_that_is_said(three, capsys):
    error, _ = failing(
        three, "if client_id == 0:\n    float(tf.reduce_sum(x))\nelse:\n    print(tf.reduce_sum(x, axis=0))"
    )
    assert "ollective" in error.evalue
    assert "%dtensor_restart --keep all" in error.hint
    works_after_rebuild(three, capsys)


@pytest.mark.parametrize(
    ("code", "bound", "word"),
    [
        ("time.sleep(60)", 4.0, "was interrupted"),
        (f"if client_id != 1: {COLLECTIVE}", 5.0, "was released from a collective"),
        ("if client_id != 1: print(tf.reduce_sum(x))", 5.0, "was released from a collective"),
        ("if client_id != 1: dtensor.barrier(mesh)", 5.0, "was released from a collective"),
        ("lock = threading.Lock(); lock.acquire(); lock.acquire()", 4.0, "was interrupted"),
        (
            "while True:\n    try: time.sleep(60)\n    except KeyboardInterrupt: pass",
            7.0,
            "did not stop and had to be killed",
        ),
        (DEADLOCK, 8.0, "did not stop and had to be killed"),
    ],
    ids=["sleep", "collective", "print", "barrier", "mutex", "deaf", "native"],
)
def test_the_interrupt_always_works_and_says_what_came_of_each(three, capsys, code, bound, word):
    handle = three.run_later(code)
    wait_for(lambda: handle.state == "running" and three.state(sample=False).cell is not None)
    wait_for(lambda: three.state(sample=False).clients[0].phase in (Phase.BUSY, Phase.WAITING))
    time.sleep(1)  # for the clients to be inside the call
    start = time.monotonic()
    outcomes = three.interrupt()
    assert time.monotonic() - start < bound
    assert outcomes[0] == word
    with pytest.raises((CellError, ClientDiedError, ClientsInterruptedError)):
        handle.wait(10)
    capsys.readouterr()
    if word == "was interrupted":
        three.run(COLLECTIVE)
    elif word == "was released from a collective":
        assert outcomes[1] == "had finished"
        works_after_rebuild(three, capsys)
    else:
        with pytest.raises(ClientDiedError):
            three.run("1")
        three.restart()
        three.run("print('again')")
        assert capsys.readouterr().out == "[0-2] again\n"


def test_ctrl_c_climbs_the_ladder_and_a_second_one_goes_to_its_end(three, capsys):
    def press(times, pause):
        wait_for(lambda: three.state(sample=False).cell is not None)
        time.sleep(0.5)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(pause)

    thread = threading.Thread(target=press, args=(1, 0))
    thread.start()
    error, seconds = failing(three, "time.sleep(60)")
    thread.join()
    assert isinstance(error, ClientsInterruptedError)
    assert "clients 0-2 were interrupted" in str(error)
    assert seconds < 3
    three.run(COLLECTIVE)

    thread = threading.Thread(target=press, args=(2, 0.3))
    thread.start()
    error, seconds = failing(three, "while True:\n    try: time.sleep(60)\n    except KeyboardInterrupt: pass")
    thread.join()
    assert "clients 0-2 did not stop and had to be killed" in str(error)
    assert seconds < 3


def test_no_late_output_after_an_interrupt(three, capsys):
    handle = three.run_later("for i in range(10000): print('tick', flush=True); time.sleep(0.01)")
    wait_for(lambda: "tick" in capsys.readouterr().out)
    three.interrupt()
    with pytest.raises((CellError, ClientsInterruptedError)):
        handle.wait(10)
    capsys.readouterr()
    three.run("time.sleep(0.5); print('quiet')")
    assert capsys.readouterr().out == "[0-2] quiet\n"


def test_stacks_at_any_time(three):
    assert set(three.stacks().values()) == {"idle: no cell runs"}
    handle = three.run_later(
        f"def inner():\n    return float(tf.reduce_sum(x))\nif client_id == 0:\n    inner()\nelif client_id == 1:\n    time.sleep(60)\nelse:\n    {DEADLOCK}"
    )
    wait_for(lambda: three.state(sample=False).cell is not None)
    wait_for(lambda: three.stacks()[0].startswith("waits in a collective"), timeout=20)
    stacks = three.stacks()
    frames = [line.strip() for line in stacks[0].splitlines()]
    assert frames[1].startswith("cell, line 4, in <")
    assert frames[2:5] == ["inner()", "cell, line 2, in inner", "return float(tf.reduce_sum(x))"]
    assert "is idle" in stacks[1]
    assert "time.sleep(60)" in stacks[1]
    assert "the interpreter does not answer" in stacks[2]
    assert "Current thread" in stacks[2] or "Thread 0x" in stacks[2]
    three.interrupt()
    with pytest.raises((CellError, ClientDiedError, ClientsInterruptedError)):
        handle.wait(10)


def test_another_count_and_mesh_lay_kept_tensors_out_anew(three, capsys):
    report = three.restart(clients=2, mesh="x=2", keep=["all"])
    assert {"x", "v", "w", "values"} <= set(report.kept)
    three.run(
        "assert np.array_equal(np.split(values, num_clients)[client_id], dtensor.unpack(x)[0].numpy()); print('halves')"
    )
    assert "[0-1] halves" in capsys.readouterr().out
    report = three.restart(clients=5, mesh="x=5", keep=["x", "values"])
    assert report.kept == ["x", "values"]
    three.run(
        "import numpy as np\nassert np.array_equal(dtensor.unpack(x)[0].numpy(), values); print(dtensor.fetch_layout(x).sharding_specs)"
    )
    assert "[0-4] ['unsharded', 'unsharded']" in capsys.readouterr().out


def test_what_cannot_be_kept_is_told_with_the_reason(three):
    three.run("generator = (i for i in range(3))\nlock = threading.Lock()")
    report = three.restart(keep=["all"])
    assert {"generator", "lock"} <= set(report.lost)
    assert "generator" in report.lost["generator"]
    report = three.restart(keep=["nothing"])
    assert report.lost == {"nothing": "there is no such name"}


def test_what_variables_share_stays_shared_and_functions_see_the_namespace(three, capsys):
    three.run(
        "class Net(tf.Module):\n    def __init__(self): super().__init__(); self.v = v\n    def __call__(self): return tf.reduce_sum(self.v)",
        setup=True,
    )
    three.run(
        "net = Net()\nweights = [net.v]\nfactor = 3\ndef scaled(t): return factor * t\n@tf.function\ndef summed(t): return tf.reduce_sum(t)\nbefore = float(summed(x))"
    )
    three.restart(keep=["all"])
    three.run(
        "factor = 5\nassert net.v is weights[0] is v\nassert type(net) is Net\nassert scaled(2) == 10\n"
        "assert float(summed(x)) == before == float(net())\nprint('shared')"
    )
    assert "[0-2] shared" in capsys.readouterr().out


def test_replay_runs_set_up_cells_again_in_order(three, capsys):
    three.run("steps = ['one']", setup=True)
    three.run("steps.append('two')", setup=True)
    with pytest.raises(CellError):
        three.run("steps.append(1 / 0)", setup=True)
    three.restart(replay=True)
    three.run("print(steps)")
    assert "[0-2] ['one', 'two']" in capsys.readouterr().out
    three.restart()
    with pytest.raises(CellError, match="NameError"):
        three.run("steps")


def test_an_interrupt_during_a_rebuild_leaves_nothing_behind(three):
    pids = [client.pid for client in three.state().clients]

    def press():
        wait_for(lambda: gone(pids))
        os.kill(os.getpid(), signal.SIGINT)

    known = {process.pid for process in our_processes()} - set(pids)
    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        three.restart(clients=8, mesh="x=8")
    thread.join()
    wait_for(lambda: {process.pid for process in our_processes()} <= known, what="clients of the broken-off start")
    with pytest.raises(ClusterStateError):
        three.run("1")


def test_variables_of_every_kind_are_kept(three, capsys):
    three.run(
        "plain = tf.Variable([1, 2], trainable=False, dtype=tf.int64, name='plain')\n"
        "half = dtensor.call_with_layout(lambda: tf.ones((3, 2), tf.bfloat16), sharded)\n"
        "flags = dtensor.call_with_layout(lambda: tf.constant(True), dtensor.Layout.replicated(mesh, 0))\n"
        "empty = dtensor.call_with_layout(tf.zeros, dtensor.Layout.replicated(mesh, 1), shape=(0,))\n"
        "words = tf.constant(['a', 'b'])\nafter = 7"
    )
    report = three.restart(keep=["all"])
    assert {"plain", "half", "flags", "empty", "words", "after"} <= set(report.kept), report
    three.run(
        "print(plain.dtype.name, plain.trainable, plain.numpy().tolist(), dtensor.unpack(half)[0].dtype.name, "
        "bool(flags), empty.shape[0], words.numpy().tolist(), after)"
    )
    assert "[0-2] int64 False [1, 2] bfloat16 True 0 [b'a', b'b'] 7" in capsys.readouterr().out


def test_what_refuses_to_be_saved_takes_nothing_else_along(three):
    three.run("class Refuses:\n    def __reduce__(self): raise SystemExit(1)\nbad = Refuses()\nafter = 1")
    three.run("strings = dtensor.pack([tf.constant(['a', 'b'])], dtensor.Layout(['x'], mesh))")
    report = three.restart(keep=["all"])
    assert {"bad", "strings"} <= set(report.lost)
    assert {"after", "v", "w"} <= set(report.kept)


def test_clients_that_cannot_save_are_left_as_they_are(three, monkeypatch, capsys):
    import dtensor_magic.keeping as keeping
    from dtensor_magic.errors import KeepError

    original = keeping._save_one

    async def no_room(group, folder, client, names):
        return {"text": "OSError: no space left"} if client == 1 else await original(group, folder, client, names)

    monkeypatch.setattr(keeping, "_save_one", no_room)
    with pytest.raises(KeepError, match="client 1 of .* could not save its variables .OSError: no space left."):
        three.restart(keep=["all"])
    three.run(CHECK_SHARDS)
    assert "True" in capsys.readouterr().out


def test_a_set_up_cell_that_fails_in_a_restart_loses_no_variables(three, capsys):
    three.run("import pathlib\nassert not pathlib.Path(globals().get('flag', '/nowhere')).exists()", setup=True)
    three.setup_cells.append("raise ValueError('set-up')")
    with pytest.raises(CellError, match="set-up"):
        three.restart(keep=["all"])
    three.run(CHECK_SHARDS)
    assert "True" in capsys.readouterr().out


def test_streams_survive_what_cells_do_to_them(three, capsys):
    three.run("print('\\ud800 lone surrogate')")
    assert "lone surrogate" in capsys.readouterr().out
    three.run("sys.stdout.close()", timeout=10)
    three.run("1", timeout=10)


def test_an_infinite_recursion_is_reported_at_once(three):
    error, seconds = failing(three, "def deeper(): return deeper()\ndeeper()")
    assert error.ename == "RecursionError"
    assert seconds < 5
