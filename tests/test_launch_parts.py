"""A launch's words, and what they make of this node: which processes, addresses, shares."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtensor_magic.errors import SpecError, StartError
from dtensor_magic.launch import part as parts
from dtensor_magic.launch.control import Control, Follower, Leader
from dtensor_magic.launch.options import MODELARTS, parse
from dtensor_magic.launch.part import make_part
from dtensor_magic.resources import Node

GB = 10**9
WORKERS = "xx-worker-0.xx:5001,xx-worker-1.xx:5002"
SERVERS = "[xx-PS-0.xx:6001,xx-PS-1.xx:6002]"


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    """Stand in a folder with a script that uses DTensor, and one that uses parameter servers."""
    (tmp_path / "train.py").write_text("from tensorflow.experimental import dtensor\n")
    (tmp_path / "served.py").write_text("strategy = tf.distribute.ParameterServerStrategy(resolver)\n")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def page_node(monkeypatch):
    """Stand on ModelArts' example node: 8 GPUs, 72 cores, 512 GB."""
    node = Node(72, tuple(range(72)), 512 * GB, tuple(str(number) for number in range(8)), "GPU")
    monkeypatch.setattr(parts, "this_node", lambda device_type, environ: node)
    monkeypatch.setattr(parts, "usable_cpus", lambda: node.cpus)
    monkeypatch.setattr(parts.os, "cpu_count", lambda: 72)
    monkeypatch.setattr(parts.cgroup, "cpu_quota", lambda: None)


def words(index: int = 0, job: str = "worker", workers: str = WORKERS, servers: str = SERVERS) -> list[str]:
    return [
        "--task_index", str(index), "--PS_hosts", servers, "--worker_hosts", workers, "--job_name", job, "train.py",
    ]  # fmt: skip


# --- the words


@given(st.randoms(use_true_random=False), st.booleans())
def test_modelarts_start_command_is_read_in_any_spelling(random, equals):
    said: list[str] = []
    for option, value in zip(MODELARTS, ("1", SERVERS, WORKERS, "work"), strict=True):
        name = "".join(
            random.choice([letter.upper(), letter]) for letter in option.replace("-", random.choice("-_"))
        )
        name = "--" + name.lstrip("-_")
        said += [f"{name}={value}"] if equals else [name, value]
    options = parse([*said, "train.py", "--epochs", "5", "--task_index", "9"])
    assert options.task == {
        "VC_TASK_INDEX": "1",
        "TF_PS_HOSTS": SERVERS,
        "TF_WORKER_HOSTS": WORKERS,
        "MA_TASK_NAME": "work",
    }
    assert options.script.name == "train.py"
    assert options.arguments == ("--epochs", "5", "--task_index", "9")


def test_on_a_single_node_the_script_and_its_arguments_are_all():
    options = parse(["train.py", "-n", "3", "--plan"])
    assert (options.task, options.clients, options.arguments, options.plan) == (
        None,
        1,
        ("-n", "3", "--plan"),
        False,
    )


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([], "there is no script; write dtensor-magic launch [options] script.py [ARGS]"),
        (["nothing.py"], "there is no script nothing.py in "),
        (["-n", "0", "train.py"], "clients: '0' is not a client count"),
        (["--ps", "x", "train.py"], "ps: 'x' is not a count of parameter servers"),
        (["--clinets", "2", "train.py"], "unknown option --clinets; did you mean --clients?"),
        (["--epochs", "2", "train.py"], "unknown option --epochs; the script's own options stand behind it"),
        (["--plan=1", "train.py"], "--plan takes no value"),
        (["--logs"], "--logs needs a value"),
        (["--grace", "-1", "train.py"], "grace: '-1' is not a time"),
        (["--control-port", "99999", "train.py"], "control port: port 99999 is out of range"),
        (["--strategy", "mirrored", "train.py"], "--strategy is dtensor or parameter-server, not 'mirrored'"),
        (["--strategy", "parameter-server", "train.py"], "needs parameter servers; give --ps 1"),
        (
            ["--task_index", "${VC_TASK_INDEX}", "train.py"],
            "--task_index ${VC_TASK_INDEX} was not expanded; have a she",
        ),
        (["--Worker_Hosts=$TF_WORKER_HOSTS", "train.py"], "--Worker_Hosts $TF_WORKER_HOSTS was not expanded"),
        # What an unquoted variable leaves when it is empty.
        (
            ["--task_index", "--PS_hosts", "a:1", "train.py"],
            "--task_index has no value: VC_TASK_INDEX is empty or not",
        ),
        (["--task_index", "", "train.py"], "--task_index has no value: VC_TASK_INDEX is empty or not set here."),
        (["--PS_hosts=[]", "train.py"], "Leave the option out, if the job has no parameter servers."),
        (
            ["--job_name", "train.py", "--epochs", "5"],
            "--job_name (from MA_TASK_NAME): 'train.py' is no task of a Tens",
        ),
        (["--task_index", "0", "--job_name", "ps", "train.py"], "--worker_hosts is missing beside the others"),
        (words(2), "VC_TASK_INDEX: there is no worker 2; there is only 0 to 1."),
        (["--from", "slurm", *words()], "exclude each other"),
        (["--ps", "1", *words()], "says which parameter servers the job has; leave --ps out"),
        (["-n", "1000", *words(workers="a:5001,b:65000")], "client 1536 on b: port 65536 is out of range"),
        (
            ["-n", "2", *words(workers="a:5001", servers="a:5002")],
            "a:5002 would be a client's, but it is a parameter",
        ),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(said, says):
    with pytest.raises(SpecError) as caught:
        make_part(parse(said), {})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# --- this node alone


def test_one_client_alone_is_the_script_in_local_mode():
    (task,) = make_part(parse(["train.py"]), {"DTENSOR_JOBS": "", "HOME": "/root"}).tasks
    assert (task.label, task.kind) == ("0", "script")
    assert "DTENSOR_JOBS" not in task.env
    assert task.env["HOME"] == "/root"
    assert "TF_NUM_INTRAOP_THREADS" not in task.env


def test_several_clients_alone_get_their_addresses_ids_and_threads():
    part = make_part(parse(["-n", "3", "--device", "cpu", "train.py"]), {"DTENSOR_JOB_NAME": "trainer"})
    jobs = part.tasks[0].env["DTENSOR_JOBS"].split(",")
    assert len(set(jobs)) == 3
    assert all(job.startswith("localhost:") for job in jobs)
    for number, task in enumerate(part.tasks):
        assert task.env["DTENSOR_JOBS"] == ",".join(jobs)
        assert (task.env["DTENSOR_CLIENT_ID"], task.env["DTENSOR_NUM_CLIENTS"]) == (str(number), "3")
        assert task.env["DTENSOR_JOB_NAME"] == "trainer"
        assert task.env["TF_NUM_INTRAOP_THREADS"] == str(task.share.threads)


def test_with_parameter_servers_the_script_coordinates_and_servers_do_the_rest():
    part = make_part(parse(["-n", "2", "--ps", "1", "served.py"]), {})
    assert [(task.label, task.kind) for task in part.tasks] == [
        ("ps 0", "server"),
        ("worker 0", "server"),
        ("worker 1", "server"),
        ("chief", "script"),
    ]
    told = [json.loads(task.env["TF_CONFIG"]) for task in part.tasks]
    assert {role: len(tasks) for role, tasks in told[-1]["cluster"].items()} == {"worker": 2, "ps": 1, "chief": 1}
    assert [one["task"] for one in told] == [
        {"type": "ps", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "chief", "index": 0},
    ]


def test_the_strategy_is_what_the_script_says_unless_it_is_given():
    assert make_part(parse(["--ps", "1", "train.py"]), {}).strategy == "dtensor"
    assert make_part(parse(["--ps", "1", "served.py"]), {}).strategy == "parameter-server"
    assert make_part(parse(["--ps", "1", "--strategy", "dtensor", "served.py"]), {}).strategy == "dtensor"
    # Without servers there is nothing to coordinate with.
    assert make_part(parse(["served.py"]), {}).strategy == "dtensor"


# --- a part of a job


def test_a_worker_is_the_dtensor_client_of_its_index():
    part = make_part(parse(words(1)), {})
    assert part.names == ("worker 0", "worker 1", "ps 0", "ps 1")
    assert (part.name, part.works, part.leader) == ("worker 1", True, ("xx-worker-0.xx", 15001))
    (task,) = part.tasks
    assert (task.env["DTENSOR_JOBS"], task.env["DTENSOR_CLIENT_ID"]) == (WORKERS, "1")
    # The platform's variables would say that the client is something else.
    assert task.env["DTENSOR_MAGIC_FROM"] == "dtensor"


@given(st.integers(0, 1), st.integers(1, 8))
def test_several_clients_per_worker_count_through(index, count):
    said = ["-n", str(count), *words(index, workers="h:5001,h:5002", servers="p:1")]
    tasks = make_part(parse(said), {"CUDA_VISIBLE_DEVICES": ""}).tasks
    jobs = tasks[0].env["DTENSOR_JOBS"].split(",")
    assert len(set(jobs)) == 2 * count
    assert jobs[0] == "h:5001"
    assert jobs[count] == "h:5002"
    assert [task.env["DTENSOR_CLIENT_ID"] for task in tasks] == [str(index * count + i) for i in range(count)]


def test_a_parameter_server_of_a_dtensor_job_runs_nothing():
    part = make_part(parse(words(1, "PS")), {})
    assert (part.name, part.tasks, part.works) == ("ps 1", (), False)


def test_a_parameter_server_job_is_coordinated_beside_its_first_worker():
    def part_of(index: int, job: str) -> parts.Part:
        return make_part(parse([*words(index, job)[:-1], "served.py"]), {})

    assert [task.label for task in part_of(0, "ps").tasks] == ["ps 0"]
    assert [task.label for task in part_of(1, "worker").tasks] == ["worker 1"]
    first = part_of(0, "worker")
    assert [(task.label, task.kind) for task in first.tasks] == [("worker 0", "server"), ("chief", "script")]
    cluster = json.loads(first.tasks[1].env["TF_CONFIG"])["cluster"]
    assert cluster["worker"] == WORKERS.split(",")
    assert cluster["chief"][0].startswith("xx-worker-0.xx:")
    assert [part_of(0, "worker").works, part_of(1, "worker").works] == [True, False]


def test_a_chief_of_tf_config_coordinates_and_workers_serve():
    cluster = {"chief": ["c:1"], "worker": ["w:1", "x:1"], "ps": ["p:1"]}
    for role, labels in (("chief", ["chief"]), ("worker", ["worker 0"]), ("ps", ["ps 0"])):
        environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})}
        part = make_part(parse(["served.py"]), environ)
        assert [task.label for task in part.tasks] == labels
        assert part.leader == ("c", 10001)
        assert json.loads(part.tasks[0].env["TF_CONFIG"])["cluster"] == {**cluster}


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"DTENSOR_JOBS": "a:1,b:1", "DTENSOR_CLIENT_ID": "2"}, "client id 2 is out of range: it is 0 to 1."),
        ({"DTENSOR_JOBS": "/bns/a/0:p,/bns/a/1:p"}, "cannot meet at /bns/a/0:p, which is no host:port"),
        (
            {"TF_CONFIG": '{"sparseCluster": {"ps": ["p:1"], "worker": {}}, "task": {"type": "ps", "index": 0}}'},
            "tf_config does not name all tasks of the job, so that its parts cannot meet. On Kubeflow,",
        ),
        (
            {"TF_CONFIG": '{"cluster": {"ps": ["p:1"]}, "task": {"type": "ps", "index": 0}}'},
            "does not name all tasks",
        ),
    ],
)
def test_a_job_whose_parts_cannot_meet_is_refused(environ, says):
    with pytest.raises(SpecError) as caught:
        make_part(parse(["-n", "2", "train.py"]), environ)
    assert says in str(caught.value)


def test_dtensor_jobs_of_one_client_stay_multi_client_mode():
    part = make_part(parse(["train.py"]), {"DTENSOR_JOBS": "localhost:5001"})
    assert part.tasks[0].env["DTENSOR_JOBS"] == "localhost:5001"


def test_a_node_alone_ignores_its_task_index():
    part = make_part(parse(["train.py"]), {"MA_NUM_HOSTS": "1", "VC_TASK_INDEX": "3", "VC_WORKER_HOSTS": "a.b"})
    assert (len(part.tasks), part.leader) == (1, None)
    assert "DTENSOR_JOBS" not in part.tasks[0].env


# --- the page's node


def test_a_parameter_server_and_a_worker_of_the_pages_node_get_its_halves(page_node):
    both = {"workers": "n0:5001,n1:5001", "servers": "n0:5002,n1:5002"}
    (worker,) = make_part(parse(words(0, "worker", **both)), {}).tasks
    assert worker.share is not None
    assert (worker.share.cores, worker.share.memory) == (36, 256 * GB)
    assert worker.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert worker.env["TF_NUM_INTRAOP_THREADS"] == "36"
    (ps,) = make_part(parse([*words(0, "ps", **both)[:-1], "served.py"]), {}).tasks
    assert ps.share is not None
    assert (ps.share.cores, ps.share.memory) == (36, 256 * GB)
    assert ps.env["CUDA_VISIBLE_DEVICES"] == "-1"
    assert not set(ps.share.cpus) & set(worker.share.cpus)


def test_a_worker_alone_on_the_pages_node_has_all_of_it(page_node):
    (worker,) = make_part(parse(words(0)), {}).tasks
    assert worker.share is not None
    assert (worker.share.cores, worker.share.memory, worker.share.threads) == (72, 512 * GB, None)


def test_what_the_platform_gave_a_part_is_not_divided_again(page_node, monkeypatch):
    both = words(0, workers="n0:5001,n0:5002", servers="n0:5003")
    assert make_part(parse(both), {}).tasks[0].share.cores == 18
    monkeypatch.setattr(parts.cgroup, "cpu_quota", lambda: 72.0)
    assert make_part(parse(both), {}).tasks[0].share.cores == 72


# --- the parts find each other


def free_port() -> int:
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


NAMES = ("worker 0", "worker 1", "ps 0")


def job_of(port: int) -> tuple[Leader, Follower, Follower]:
    return (
        Leader(NAMES, port, "same", works=True),
        Follower("worker 1", ("localhost", port), "same", works=True),
        Follower("ps 0", ("localhost", port), "same", works=False),
    )


async def meet_all(*ends: Control, timeout: float = 20) -> None:
    await asyncio.gather(*(end.meet(timeout) for end in ends))


async def close_all(*ends: Control) -> None:
    for end in ends:
        await end.close()


def test_the_job_ends_well_when_all_that_work_are_done():
    async def run() -> list[tuple[int, str]]:
        ends = job_of(free_port())
        await meet_all(*ends)
        await ends[1].report(0, "")
        # One of two: the rest goes on.
        assert not any(end.ended.done() for end in ends)
        await ends[0].report(0, "")
        outcomes = await asyncio.wait_for(asyncio.gather(*(end.ended for end in ends)), 20)
        await close_all(*ends)
        return outcomes

    assert asyncio.run(run()) == [(0, "")] * 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_one_failure_ends_the_job_everywhere_with_its_code(failing):
    async def run() -> list[tuple[int, str]]:
        ends = job_of(free_port())
        await meet_all(*ends)
        await ends[failing].report(7, "client 1 exited with code 7")
        outcomes = await asyncio.wait_for(asyncio.gather(*(end.ended for end in ends)), 20)
        await close_all(*ends)
        return outcomes

    assert asyncio.run(run()) == [(7, "client 1 exited with code 7")] * 3


@pytest.mark.parametrize(("gone", "says"), [(1, "worker 1 is gone"), (0, "the first client's launcher is gone")])
def test_a_launcher_that_is_gone_ends_the_job_and_is_named(gone, says):
    async def run() -> tuple[int, str]:
        ends = job_of(free_port())
        await meet_all(*ends)
        await ends[gone].close()
        outcome = await asyncio.wait_for(ends[2].ended, 20)
        await close_all(*(end for end in ends if end is not ends[gone]))
        return outcome

    code, why = asyncio.run(run())
    assert code == 1
    assert says in why


def test_parts_that_do_not_come_are_named_in_bounded_time():
    async def run() -> tuple[str, str]:
        leader, first, _ = job_of(free_port())
        found = await asyncio.gather(leader.meet(1), first.meet(20), return_exceptions=True)
        await close_all(leader, first)
        return str(found[0]), str(found[1])

    leaders, others = asyncio.run(run())
    assert leaders == "ps 0 did not come within 1 s; start the launcher there too, or give more --timeout."
    assert others == "the job ended before it began: ps 0 did not come within 1 s."


def test_a_leader_that_is_not_there_is_named():
    async def run() -> None:
        with pytest.raises(StartError, match=r"did not answer at localhost:\d+ within 0.5 s.*--control-port"):
            await Follower("ps 0", ("localhost", free_port()), "same", works=False).meet(0.5)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "job", "says"),
    [("worker 1", "other", "its description of the job is another"), ("worker 9", "same", "has no such part")],
)
def test_a_part_of_another_job_is_refused(name, job, says):
    async def run() -> None:
        port = free_port()
        leader = Leader(NAMES, port, "same", works=True)
        waiting = asyncio.ensure_future(leader.meet(20))
        stranger = Follower(name, ("localhost", port), job, works=True)
        with pytest.raises(StartError, match=says):
            await stranger.meet(20)
        assert not leader.ended.done()
        waiting.cancel()
        await close_all(stranger, leader)

    asyncio.run(run())


def test_noise_on_the_port_is_no_part():
    async def run() -> None:
        port = free_port()
        ends = job_of(port)
        waiting = asyncio.ensure_future(ends[0].meet(20))
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100_000, b"[1]\n", b'{"part": 3}\n', b""):
            follower = Follower("x", ("localhost", port), "same", works=False)
            await follower._connect(asyncio.get_running_loop().time() + 20, 20)  # waits until the port is open
            reader, writer = await asyncio.open_connection("localhost", port)
            writer.write(noise)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 20)
            writer.close()
            await follower.close()
        await meet_all(*ends[1:])
        await waiting
        await close_all(*ends)

    asyncio.run(run())


def test_an_open_port_in_the_way_is_named():
    async def run() -> None:
        with socket.create_server(("", 0)) as taken:
            leader = Leader(NAMES, taken.getsockname()[1], "same", works=True)
            with pytest.raises(StartError, match=rf"port {taken.getsockname()[1]}, which cannot be opened"):
                await leader.meet(1)

    asyncio.run(run())


def test_nothing_of_ours_is_changed_in_this_process():
    before = dict(os.environ)
    make_part(parse(["-n", "2", "train.py"]))
    assert dict(os.environ) == before
