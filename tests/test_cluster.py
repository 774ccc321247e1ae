"""A cluster from Python: start, run, restart, stop, on real clients."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from pathlib import Path

import psutil
import pytest
from conftest import gone, our_processes, wait_for

from dtensor_magic import Cluster
from dtensor_magic.cluster import registry
from dtensor_magic.errors import (
    CellError,
    CellTimeoutError,
    ClientDiedError,
    ClusterStateError,
    SpecError,
    StartError,
)
from dtensor_magic.launchers.local import local_agent
from dtensor_magic.records import find_record, live_records, records_folder
from dtensor_magic.state import ClusterPhase, Phase

SUM = """
x = dtensor.call_with_layout(tf.ones, dtensor.Layout(["batch", "unsharded"], mesh), shape=(8, 3))
print(int(tf.reduce_sum(x)))
"""


@pytest.fixture(scope="module")
def four():
    """Four clients that the tests of this module share."""
    with Cluster.start("CPU", clients=4, mesh="batch=4", name="four") as cluster:
        yield cluster


def said(capsys) -> str:
    return capsys.readouterr().out


def test_a_collective_over_all_clients(four, capsys):
    four.run(SUM)
    assert said(capsys) == "[0-3] 24\n"


def test_clients_find_what_they_need_in_their_namespace(four, capsys):
    four.run("print(device_type, num_clients, mesh.shape(), dtensor.num_clients(), tf.__name__)")
    assert said(capsys) == "[0-3] CPU 4 [4] 4 tensorflow\n"
    result = four.run("client_id", output="none")
    assert {client: value["text/plain"] for client, value in result.results.items()} == {
        client: str(client) for client in range(4)
    }


def test_only_the_named_clients_run(four, capsys):
    four.run("print('here')", on=[1, 3])
    assert said(capsys) == "[1, 3] here\n"


def test_output_modes(four, capsys):
    four.run("print('x')", output="first")
    assert said(capsys) == "[0] x\n"
    four.run("print('x')", output="none")
    assert said(capsys) == ""
    four.run("print('x')", output="each")
    assert sorted(said(capsys).splitlines()) == ["[0] x", "[1] x", "[2] x", "[3] x"]


def test_output_is_live(four, capsys):
    seen: list[float] = []
    start = time.monotonic()

    def watch():
        wait_for(lambda: "first" in capsys.readouterr().out)
        seen.append(time.monotonic() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    four.run("import time\nprint('first', flush=True)\ntime.sleep(2)")
    watcher.join()
    assert seen[0] < 1.5


def test_nothing_is_stripped_or_lost(four, capsys):
    text = "  \\tlead\\n\\n\\x1b[31mred\\x1b[0m\\nend"
    four.run(f"import sys\n_ = sys.stdout.write('{text}')")
    assert said(capsys) == "[0-3]   \tlead\n[0-3] \n[0-3] \x1b[31mred\x1b[0m\n[0-3] end\n"


def test_file_descriptors_and_logging_arrive_in_their_cell(four, capfd):
    four.run("import os, logging\n_ = os.write(1, b'fd one\\n')\nlogging.getLogger('mine').warning('logged')")
    captured = capfd.readouterr()
    assert "[0-3] fd one" in captured.out
    assert "[0-3] WARNING:mine:logged" in captured.err


def test_ipython_syntax_works_in_cells(four, capsys):
    four.run("import asyncio\nawait asyncio.sleep(0)\nfiles = !echo shell\nprint(files[0])\n%time _ = 1")
    out = said(capsys)
    assert "[0-3] shell" in out
    assert "CPU times" in out


def test_an_error_names_its_client_and_shows_the_remote_traceback(four):
    with pytest.raises(CellError) as caught:
        four.run("if client_id == 2:\n    raise ValueError('boom')")
    error = caught.value
    assert (error.clients, error.ename, error.evalue) == ((2,), "ValueError", "boom")
    shown = "\n".join(error._render_traceback_())
    assert "client 2 of four raised" in shown
    assert "raise" in shown


def test_the_same_error_everywhere_is_shown_once(four):
    with pytest.raises(CellError) as caught:
        four.run("1 / 0")
    assert caught.value.clients == (0, 1, 2, 3)
    assert caught.value.others == {}
    shown = "\n".join(caught.value._render_traceback_())
    assert shown.count("division by zero") == 1


def test_different_errors_are_all_told(four):
    with pytest.raises(CellError) as caught:
        four.run("if client_id == 1: raise KeyError('k')\nif client_id == 3: raise OSError('o')")
    error = caught.value
    assert {*error.clients, *error.others} == {1, 3}


def test_the_clients_work_on_after_an_error(four, capsys):
    with pytest.raises(CellError):
        four.run("raise RuntimeError")
    four.run(SUM)
    assert said(capsys) == "[0-3] 24\n"


def test_a_cell_that_runs_too_long_is_interrupted_and_says_where(four, capsys):
    with pytest.raises(
        CellTimeoutError, match="clients 1-2 of four had not finished after 1 s and were interrupted"
    ):
        four.run("import time\nif client_id in (1, 2): time.sleep(60)", timeout=1)
    four.run("print('on')")
    assert said(capsys) == "[0-3] on\n"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"code": " \n"}, "the cell is empty"),
        ({"code": "1", "on": [4]}, "client 4 is not in four; it has 0-3"),
        ({"code": "1", "on": []}, "no client is named"),
        ({"code": "1", "output": "some"}, "fold, each, first, none"),
        ({"code": "1", "timeout": 0}, "give seconds above 0"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(four, call, says):
    with pytest.raises(SpecError, match=says):
        four.run(**call)


def test_a_cell_sent_while_another_runs_is_queued_and_said(four, capsys):
    first = four.run_later("import time; time.sleep(1); print('first')")
    wait_for(lambda: four.state(sample=False).phase == ClusterPhase.BUSY)
    second = four.run_later("print('second')")
    assert (first.state, second.state) == ("running", "queued")
    with pytest.raises(ClusterStateError, match="busy with a cell"):
        four.restart()
    four.run("print('third')")
    assert second.wait(10).clients == (0, 1, 2, 3)
    assert (first.state, second.state) == ("done", "done")
    captured = capsys.readouterr()
    assert captured.out == "[0-3] first\n[0-3] second\n[0-3] third\n"
    assert captured.err.count("queued; four still runs the cell before this one") == 2


def test_cells_sent_without_waiting_can_be_cancelled(four, capsys):
    first = four.run_later("import time; time.sleep(60)")
    wait_for(lambda: first.state == "running")
    second = four.run_later("print('never')")
    second.cancel()
    first.cancel()
    assert (first.state, second.state) == ("cancelled", "cancelled")
    with pytest.raises(TimeoutError):
        four.run_later("import time; time.sleep(1)").wait(0.1)
    four.run("print('after')")
    assert capsys.readouterr().out == "[0-3] after\n"


def test_an_error_without_waiting_is_shown_and_raised_by_wait(four, capsys):
    handle = four.run_later("1 / 0")
    with pytest.raises(CellError, match="ZeroDivisionError"):
        handle.wait(10)
    assert handle.state == "failed"
    assert "division by zero" in capsys.readouterr().err


def test_state_while_a_cell_runs_and_after(four):
    thread = threading.Thread(target=lambda: four.run("# wait\nimport time; time.sleep(1)"))
    thread.start()
    wait_for(lambda: four.state(sample=False).phase == ClusterPhase.BUSY)
    state = four.state()
    assert state.cell == "# wait"
    assert {client.phase for client in state.clients} <= {Phase.BUSY, Phase.READY}
    thread.join()
    state = four.state()
    assert state.phase == ClusterPhase.READY
    for client in state.clients:
        assert client.phase == Phase.READY
        assert client.rss > client.pss > 10_000_000
        assert client.devices[0].name == f"/job:worker/replica:0/task:{client.id}/device:CPU:0"
        assert client.devices[0].coordinates == {"batch": client.id}
        assert client.address.startswith("localhost:")


def test_what_we_make_is_private_to_the_user(four):
    folder = local_agent().folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "agent.sock").stat().st_mode) == 0o600
    record = records_folder() / "four.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(records_folder().stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        if not path.is_socket() and not path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_name_in_use_is_refused(four):
    with pytest.raises(SpecError, match="a cluster four is running already"):
        Cluster.start("CPU", clients=2, name="four")


def test_the_same_request_again_is_the_same_cluster(four):
    assert Cluster.start("CPU", clients=4, mesh="batch=4", name="four") is four


def test_two_clusters_at_once_do_not_disturb_each_other(four, capsys):
    with Cluster.start("CPU", clients=2, mesh="batch=2") as two:
        two.run("here = 'two'")
        two.run(SUM.replace("8", "2"))
        assert said(capsys) == "[0-1] 6\n"
        with pytest.raises(CellError, match="NameError"):
            four.run("here")
        four.run(SUM)
        assert said(capsys) == "[0-3] 24\n"
    registry.add(four)


def test_clients_start_where_and_as_the_notebook_is(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "from the notebook")
    with Cluster.start("CPU", clients=2, env={"YOURS": "a=b"}) as cluster:
        cluster.run("import os, sys\nprint(os.getcwd(), os.environ['MINE'], os.environ['YOURS'], sys.executable)")
        import sys

        assert said(capsys) == f"[0-1] {tmp_path} from the notebook a=b {sys.executable}\n"


def test_threads_are_divided_and_a_users_setting_wins(capsys):
    show = "print(tf.config.threading.get_intra_op_parallelism_threads(), os.environ.get('OMP_NUM_THREADS'))"
    with Cluster.start("CPU", clients=2) as cluster:
        cluster.run("import os\n" + show)
        share = max(1, len(os.sched_getaffinity(0)) // 2)
        assert said(capsys) == f"[0-1] {share} {share}\n"
    with Cluster.start("CPU", clients=2, env={"TF_NUM_INTRAOP_THREADS": "3", "OMP_NUM_THREADS": "5"}) as cluster:
        cluster.run("import os, threadpoolctl\n" + show)
        assert said(capsys) == "[0-1] 0 5\n"
        cluster.run("import numpy\nprint({pool['num_threads'] for pool in threadpoolctl.threadpool_info()})")
        assert said(capsys) == "[0-1] {5}\n"


def test_logical_cpus_per_client(capsys):
    with Cluster.start("CPU", clients=2, logical_cpus=2, mesh="batch=2,model=-1") as cluster:
        cluster.run("print(mesh.shape(), len(dtensor.local_devices('CPU')))")
        assert said(capsys) == "[0-1] [2, 2] 2\n"
        devices = [device for client in cluster.state().clients for device in client.devices]
        assert [device.global_id for device in devices] == [0, 1, 2, 3]
        assert devices[3].coordinates == {"batch": 1, "model": 1}


def test_one_background_client_is_in_local_mode(capsys):
    with Cluster.start("CPU", clients=1, background=True) as cluster:
        cluster.run("import os\nprint(os.environ.get('DTENSOR_JOBS'), dtensor.job_name(), client_id)")
        assert said(capsys) == "None localhost 0\n"
        assert cluster.state().mode == "local"


def test_job_name_and_given_ports(capsys):
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    jobs = ",".join(f"127.0.0.1:{port}" for port in ports)
    with Cluster.start("CPU", clients=2, jobs=jobs, job_name="trainer") as cluster:
        cluster.run("import os\nprint(dtensor.full_job_name(), os.environ['DTENSOR_JOBS'])", on=[0])
        assert said(capsys) == f"[0] trainer/replica:0/task:0 {jobs}\n"
        cluster.restart()
        cluster.run("print(dtensor.num_clients())")
        assert said(capsys) == "[0-1] 2\n"


def test_without_coordination_service(capsys):
    with Cluster.start("CPU", clients=2, coordination_service=False, mesh="batch=2") as cluster:
        cluster.run(SUM)
        assert said(capsys) == "[0-1] 24\n"


def test_random_state_is_each_clients_own(capsys):
    with Cluster.start("CPU", clients=2) as cluster:
        result = cluster.run("import numpy, random\n(numpy.random.rand(), random.random())", output="none")
        values = {value["text/plain"] for value in result.results.values()}
        assert len(values) == 2


def test_restart_gives_new_clients_with_another_count_and_mesh(capsys):
    with Cluster.start("CPU", clients=2, mesh="batch=2", name="again") as cluster:
        before = [client.pid for client in cluster.state().clients]
        cluster.run("kept = 1")
        cluster.restart(clients=3, mesh="batch=3")
        assert gone(before)
        cluster.run("print('kept' in globals(), mesh.shape())")
        assert said(capsys) == "[0-2] False [3]\n"
        assert find_record("again") is not None
        with pytest.raises(SpecError, match="mesh: batch=5"):
            cluster.restart(mesh="batch=5")
        cluster.run("print('still here')")
        assert said(capsys) == "[0-2] still here\n"


def test_exec_gives_the_same_through_the_stock_provisioner(capsys):
    with Cluster.start("CPU", clients=2, start_method="exec", mesh="batch=2") as cluster:
        cluster.run(SUM.replace("8", "2"))
        assert said(capsys) == "[0-1] 6\n"
        state = cluster.state()
        assert state.phase == ClusterPhase.READY
        assert all(client.pid and client.rss for client in state.clients)
        assert find_record(cluster.name) is not None
        assert "written to STDERR" in cluster.logs(0)
        pids = [client.pid for client in state.clients]
        os.kill(pids[1], signal.SIGKILL)
        wait_for(lambda: cluster.state(sample=False).clients[1].phase == Phase.DEAD)
        wait_for(lambda: "SIGKILL" in (cluster.state(sample=False).clients[1].exit or ""))
    assert gone(pids)


def test_isolated_clients_have_a_network_of_their_own(capsys):
    try:
        cluster = Cluster.start("CPU", clients=2, mesh="batch=2", isolate=True)
    except StartError as error:
        pytest.skip(f"no network namespace here: {error}")
    with cluster:
        ours = os.readlink("/proc/self/ns/net")
        cluster.run(f"import os\nprint(os.readlink('/proc/self/ns/net') != '{ours}')")
        assert said(capsys) == "[0-1] True\n"
        cluster.run(SUM.replace("8", "2"))
        assert said(capsys) == "[0-1] 6\n"


def test_a_clients_death_names_client_signal_and_cell():
    with Cluster.start("CPU", clients=2, name="mortal") as cluster:
        with pytest.raises(ClientDiedError) as caught:
            cluster.run("import os, signal\nif client_id == 1: os.kill(os.getpid(), signal.SIGKILL)")
        assert caught.value.client == 1
        assert "client 1 of mortal was killed by SIGKILL" in str(caught.value)
        assert "import os, signal" in str(caught.value)
        state = cluster.state()
        assert state.phase == ClusterPhase.FAILED
        assert "SIGKILL" in state.clients[1].exit
        cluster.restart()
        cluster.run("1", output="none")


def test_exit_codes_are_told():
    with Cluster.start("CPU", clients=2) as cluster, pytest.raises(ClientDiedError, match="exited with code 7"):
        cluster.run("import os\nif client_id == 0: os._exit(7)")


def test_shutdown_leaves_nothing_and_is_no_error_twice():
    cluster = Cluster.start("CPU", clients=2, name="short")
    pids = [client.pid for client in cluster.state().clients]
    folder = Path(cluster._members()._folder)
    cluster.shutdown()
    cluster.shutdown()
    assert gone(pids)
    assert not folder.exists()
    assert find_record("short") is None
    with pytest.raises(ClusterStateError, match="was shut down"):
        cluster.run("1")


def test_what_was_registered_with_atexit_runs(tmp_path):
    with Cluster.start("CPU", clients=2) as cluster:
        cluster.run(f"import atexit\natexit.register(lambda: open(f'{tmp_path}/{{client_id}}', 'w').close())")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_client_that_ignores_its_end_is_ended():
    cluster = Cluster.start("CPU", clients=2)
    pids = [client.pid for client in cluster.state().clients]
    handle = cluster.run_later(
        "import signal, time\nfor name in ('SIGTERM', 'SIGINT'):\n"
        "    signal.signal(getattr(signal, name), signal.SIG_IGN)\nprint('deaf')\nwhile True: time.sleep(1)"
    )
    wait_for(lambda: cluster.state(sample=False).phase == ClusterPhase.BUSY)
    start = time.monotonic()
    cluster.shutdown()
    assert gone(pids)
    assert time.monotonic() - start < 6
    with pytest.raises(ClusterStateError, match="was shut down while this cell ran"):
        handle.wait(1)


@pytest.mark.long
def test_twenty_starts_and_stops_leave_no_process_socket_or_file():
    local_agent()
    with Cluster.start("CPU", clients=1, background=True) as cluster:
        cluster.run("1", output="none")
    folder = local_agent().folder
    processes = {process.pid for process in our_processes()}
    files = sorted(path.name for path in folder.rglob("*"))
    descriptors = psutil.Process().num_fds()
    agent = psutil.Process(local_agent().process.pid)
    agents = agent.num_fds()
    for _ in range(20):
        with Cluster.start("CPU", clients=2) as cluster:
            cluster.run("1", output="none")
    wait_for(lambda: {process.pid for process in our_processes()} == processes, what="processes are left")
    assert sorted(path.name for path in folder.rglob("*")) == files
    assert live_records() == [] or [record.name for record in live_records()] == ["four"]
    assert psutil.Process().num_fds() <= descriptors + 2
    assert agent.num_fds() <= agents + 2
