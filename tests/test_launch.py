"""``dtensor-magic launch`` with real processes: training, logs, exit codes, signals, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import gone, processes_in, wait_for

EXAMPLES = Path(__file__).parents[1] / "examples"
PARENT = str(Path(__file__).parents[1])


class Launcher:
    """A launch that runs, and its output so far."""

    def __init__(self, *words: str, folder: Path, env: dict[str, str] | None = None) -> None:
        self.out, self.err = (folder / f"{id(self)}.{name}" for name in ("out", "err"))
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dtensor_magic.cli", "launch", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": PARENT, **(env or {})},
                start_new_session=True,
            )

    def wait(self, timeout: float = 90) -> int:
        return self.process.wait(timeout)

    @property
    def said(self) -> str:
        return self.out.read_text()

    @property
    def told(self) -> str:
        return self.err.read_text()

    def pids(self) -> list[int]:
        return [process.pid for process in psutil.Process(self.process.pid).children(recursive=True)]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[object]:
    """Return a function that launches; what it started is gone when the launcher is."""
    launchers: list[Launcher] = []

    def start(*words: str, **env: str) -> Launcher:
        launchers.append(Launcher(*words, folder=tmp_path, env=env))
        return launchers[-1]

    yield start
    for launcher in launchers:
        if launcher.process.poll() is None:
            launcher.process.kill()
        launcher.process.wait()
    # Whoever is left has our folder as its own.
    wait_for(lambda: not processes_in(tmp_path), what=f"left: {processes_in(tmp_path)}")


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "script.py").write_text(text)
    return "script.py"


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


# --- training


@pytest.mark.long
@pytest.mark.parametrize("clients", [1, 2])
def test_a_dtensor_script_trains_alike_with_one_client_and_with_several(launch, clients):
    run = launch("-n", str(clients), str(EXAMPLES / "launch_dtensor.py"), "--epochs", "3")
    assert run.wait() == 0, run.told
    label = "[0] " if clients > 1 else ""
    losses = re.findall(rf"^{re.escape(label)}epoch \d+  loss ([0-9.]+)$", run.said, re.MULTILINE)
    assert losses == ["2.7687", "0.2683", "0.0276"]
    for client in range(clients):
        name = f"[{client}] " if clients > 1 else ""
        assert f"{name}client {client} of {clients}, {clients} CPU devices\n" in run.said


@pytest.mark.long
def test_a_parameter_server_script_trains_on_one_node(launch):
    run = launch("-n", "2", "--ps", "1", str(EXAMPLES / "launch_parameter_server.py"), "--epochs", "3")
    assert run.wait() == 0, run.told
    assert "[chief] coordinator of 2 workers and 1 parameter servers\n" in run.said
    losses = [float(loss) for loss in re.findall(r"^\[chief\] epoch \d+  loss ([0-9.]+)$", run.said, re.MULTILINE)]
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 0.01


def modelarts_job(launch, script: str, *arguments: str) -> dict[str, Launcher]:
    """Start two workers and a parameter server as ModelArts starts them, each by its own launcher."""
    first, second, server, control = free_ports(4)
    jobs = {}
    for name, index, task in (("worker 0", "0", "worker"), ("worker 1", "1", "work"), ("ps 0", "0", "PS")):
        jobs[name] = launch(
            *("--control-port", str(control)),
            *("--task_index", index, "--PS_hosts", f"[127.0.0.1:{server}]"),
            *("--worker_hosts", f"[127.0.0.1:{first},127.0.0.1:{second}]", "--job_name", task),
            script,
            *arguments,
        )
    return jobs


@pytest.mark.long
def test_a_modelarts_job_of_dtensor_trains_and_its_parameter_server_ends_with_it(launch):
    job = modelarts_job(launch, str(EXAMPLES / "launch_dtensor.py"), "--epochs", "3")
    assert {name: part.wait() for name, part in job.items()} == dict.fromkeys(job, 0)
    assert "[0] epoch 3  loss 0.0276\n" in job["worker 0"].said
    assert "[1] client 1 of 2, 2 CPU devices\n" in job["worker 1"].said
    assert job["ps 0"].said == ""
    assert "parameter servers wait for the end of the workers" in job["ps 0"].told


@pytest.mark.long
def test_a_modelarts_job_of_parameter_server_strategy_trains(launch):
    job = modelarts_job(launch, str(EXAMPLES / "launch_parameter_server.py"), "--epochs", "3")
    assert {name: part.wait() for name, part in job.items()} == dict.fromkeys(job, 0)
    assert "[chief] coordinator of 2 workers and 1 parameter servers\n" in job["worker 0"].said
    (loss,) = re.findall(r"^\[chief\] epoch 3  loss ([0-9.]+)$", job["worker 0"].said, re.MULTILINE)
    assert float(loss) < 0.01
    assert "[worker 1]" in job["worker 1"].told
    assert "[ps 0]" in job["ps 0"].told


FAILING = """
import sys
import tensorflow as tf
from tensorflow.experimental import dtensor
dtensor.initialize_accelerator_system("CPU")
mesh = dtensor.create_distributed_mesh([("x", 2)], device_type="CPU")
ones = lambda: dtensor.call_with_layout(tf.ones, dtensor.Layout(["x"], mesh), shape=(2,))
print("sum", float(tf.reduce_sum(ones())), flush=True)
if dtensor.client_id() == 1:
    sys.exit(7)
float(tf.reduce_sum(ones()))
"""


@pytest.mark.long
def test_a_client_that_fails_ends_those_that_wait_for_it_in_a_collective(launch, tmp_path):
    run = launch("-n", "2", write(tmp_path, FAILING))
    assert run.wait(60) == 7
    assert "[0] sum 2.0\n" in run.said
    assert "dtensor-magic: client 1 exited with code 7; ending the job.\n" in run.told


@pytest.mark.long
def test_a_worker_that_fails_ends_the_whole_modelarts_job_with_its_code(launch, tmp_path):
    job = modelarts_job(launch, write(tmp_path, FAILING))
    assert {name: part.wait(60) for name, part in job.items()} == dict.fromkeys(job, 7)
    assert "client 1 exited with code 7; ending this part." in job["ps 0"].told
    assert "client 1 exited with code 7; ending this part." in job["worker 0"].told


# --- logs and exit codes


def test_each_line_is_labelled_and_each_process_has_a_log(launch, tmp_path):
    script = write(
        tmp_path,
        "import os, sys\nme = os.environ['DTENSOR_CLIENT_ID']\nprint('out', me, sys.argv[1:])\n"
        "print('10%\\r50%\\r100%\\r')\nsys.stderr.write('err ' + me)\n",
    )
    run = launch("-n", "2", "--logs", "logs", script, "--a", "b c")
    assert run.wait(30) == 0
    for client in "01":
        assert f"[{client}] out {client} ['--a', 'b c']\n[{client}] 100%\n" in run.said
        assert f"[{client}] err {client}\n" in run.told
        log = (tmp_path / "logs" / f"client-{client}.log").read_bytes()
        assert f"out {client} ['--a', 'b c']\n10%\r50%\r100%\r\n".encode() in log
        assert f"err {client}".encode() in log


def test_one_process_alone_speaks_for_itself(launch, tmp_path):
    run = launch(write(tmp_path, "import sys\nprint(sys.stdout.isatty(), sys.argv)\nsys.exit(5)"), "--epochs", "5")
    assert run.wait(30) == 5
    assert run.said == "False ['script.py', '--epochs', '5']\n"
    assert run.told == "dtensor-magic: client 0 exited with code 5.\n"


def test_a_flood_of_output_arrives_whole(launch, tmp_path):
    run = launch("-n", "2", write(tmp_path, "for i in range(20000):\n    print(f'{i:080}')\n"))
    assert run.wait(60) == 0
    for client in "01":
        lines = [line for line in run.said.splitlines() if line.startswith(f"[{client}]")]
        assert lines == [f"[{client}] {i:080}" for i in range(20000)]


@pytest.mark.parametrize(("how", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("1 / 0", 1)])
def test_the_first_failure_is_the_exit_code_and_ends_the_others(launch, tmp_path, how, code):
    script = write(
        tmp_path,
        f"import os, signal, time\nif os.environ['DTENSOR_CLIENT_ID'] == '1':\n    {how}\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('waits')\nsignal.pause()\n",
    )
    run = launch("-n", "3", "--grace", "0.2", script)
    assert run.wait(30) == code
    assert "client 1" in run.told
    assert run.told.rstrip().endswith("ending the job.")


def test_memory_is_held_to_its_share_where_that_is_asked_for(launch, tmp_path):
    script = write(
        tmp_path,
        "import os, resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_DATA)\nassert soft == hard > 0\n"
        "try:\n    bytearray(soft)\nexcept MemoryError:\n    print('held')\n",
    )
    run = launch("-n", "2", "--limit-memory", script)
    assert run.wait(30) == 0, run.told
    assert sorted(run.said.splitlines()) == ["[0] held", "[1] held"]


def test_processes_have_the_cores_and_threads_of_the_plan(launch, tmp_path):
    script = write(
        tmp_path, "import os\nprint(sorted(os.sched_getaffinity(0)), os.environ['TF_NUM_INTRAOP_THREADS'])"
    )
    run = launch("-n", "2", "--device", "cpu", script)
    assert run.wait(30) == 0
    from dtensor_magic.resources import divide, this_node

    for client, share in enumerate(divide(this_node("CPU"), 2).clients):
        cpus = share.cpus or sorted(os.sched_getaffinity(0))
        assert f"[{client}] {list(cpus)} {share.threads}\n" in run.said


def test_the_plan_is_shown_and_nothing_is_started(launch, tmp_path):
    run = launch("-n", "2", "--plan", write(tmp_path, "raise SystemExit(9)"))
    assert run.wait(30) == 0
    assert run.said.startswith("this node: ")
    assert "\nclient 1  " in run.said


def test_output_that_nobody_reads_ends_the_job(tmp_path):
    script = write(tmp_path, "while True:\n    print('y' * 1000)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "dtensor_magic.cli", "launch", "-n", "2", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PARENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.read(10_000)
    process.stdout.close()
    assert process.wait(30) == 141
    wait_for(lambda: not processes_in(tmp_path))


# --- signals

STAYS = """
import os, signal, sys
def note(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if {ends}:
        sys.exit({code})
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, note)
print("ready", flush=True)
while True:
    signal.pause()
"""


def until_ready(run: Launcher, clients: int = 2) -> None:
    wait_for(lambda: run.said.count("ready") == clients, 30, "the scripts are not ready")


@pytest.mark.parametrize(
    ("number", "code", "exits"),
    [(signal.SIGTERM, 0, 0), (signal.SIGTERM, 4, 4), (signal.SIGINT, 0, 0), (signal.SIGINT, 130, 130)],
)
def test_a_signal_is_passed_on_and_the_scripts_answer_is_the_exit_code(launch, tmp_path, number, code, exits):
    run = launch("-n", "2", write(tmp_path, STAYS.format(ends="True", code=code)))
    until_ready(run)
    run.process.send_signal(number)
    assert run.wait(30) == exits
    for client in "01":
        assert f"[{client}] got {number.name}\n" in run.said
    assert "is passed on" in run.told
    assert "ending the job" not in run.told


@pytest.mark.parametrize(("number", "exits"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_kills_at_once(launch, tmp_path, number, exits):
    run = launch("-n", "2", write(tmp_path, STAYS.format(ends="False", code=0)))
    until_ready(run)
    run.process.send_signal(number)
    wait_for(lambda: run.said.count("got") == 2)
    run.process.send_signal(number)
    assert run.wait(10) == exits


def test_what_does_not_end_after_a_signal_is_killed_when_the_grace_is_over(launch, tmp_path):
    run = launch("-n", "2", "--grace", "0.5", write(tmp_path, STAYS.format(ends="False", code=0)))
    until_ready(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(10) == 143


def test_a_users_signal_reaches_the_scripts_and_ends_nothing(launch, tmp_path):
    run = launch("-n", "2", write(tmp_path, STAYS.format(ends="number != signal.SIGUSR1", code=0)))
    until_ready(run)
    run.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: run.said.count("got SIGUSR1") == 2)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(30) == 0


def test_a_signal_to_one_part_ends_the_whole_job(launch, tmp_path):
    job = modelarts_job(launch, write(tmp_path, STAYS.format(ends="True", code=0) + "\n"))
    for name in ("worker 0", "worker 1"):
        until_ready(job[name], 1)
    job["ps 0"].process.send_signal(signal.SIGTERM)
    assert [job[name].wait(30) for name in ("ps 0", "worker 0", "worker 1")] == [143, 143, 143]
    assert "ps 0 was ended by SIGTERM; ending this part." in job["worker 1"].told


def test_a_launcher_that_waits_for_the_others_can_be_ended(launch, tmp_path):
    first, second, control = free_ports(3)
    run = launch(
        *("--control-port", str(control), "--task_index", "0"),
        *("--worker_hosts", f"127.0.0.1:{first},127.0.0.1:{second}", "--job_name", "worker"),
        write(tmp_path, "print('never')"),
    )
    wait_for(lambda: "worker 0, as modelarts" in run.told)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(10) == 130
    assert run.said == ""


# --- nothing is left

CHILDREN = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("ready", flush=True)
signal.pause()
"""


def test_when_the_launcher_is_killed_nothing_is_left(launch, tmp_path):
    run = launch("-n", "2", write(tmp_path, CHILDREN))
    until_ready(run)
    pids = run.pids()
    # Two scripts, what each started, and the guard.
    assert len(pids) == 5
    run.process.kill()
    wait_for(lambda: gone(pids), what="processes are left")


def test_when_the_launcher_and_its_guard_are_killed_the_scripts_are_not_left(launch, tmp_path):
    run = launch("-n", "2", write(tmp_path, "import signal\nprint('ready', flush=True)\nsignal.pause()\n"))
    until_ready(run)
    pids = run.pids()
    children = [psutil.Process(pid) for pid in pids]
    (guard,) = [child for child in children if "cli" in " ".join(child.cmdline())]
    guard.kill()
    run.process.kill()
    wait_for(lambda: gone(pids), what="processes are left")


def test_when_a_script_ends_what_it_started_ends_too(launch, tmp_path):
    run = launch("-n", "2", write(tmp_path, CHILDREN.replace("signal.pause()\n", "sys.exit()\n")))
    assert run.wait(30) == 0
    wait_for(lambda: not processes_in(tmp_path))


@pytest.mark.long
def test_when_a_launcher_is_killed_the_whole_job_ends(launch, tmp_path):
    job = modelarts_job(launch, write(tmp_path, CHILDREN))
    for name in ("worker 0", "worker 1"):
        until_ready(job[name], 1)
    job["worker 1"].process.kill()
    assert job["ps 0"].wait(30) == 1
    assert job["worker 0"].wait(30) == 1
    assert "worker 1 is gone: its launcher or its host ended; ending this part." in job["ps 0"].told
