"""What each process on a node gets, how it is shown, and that it gets it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtensor_magic import Cluster, cgroup, devices, resources
from dtensor_magic.errors import SpecError
from dtensor_magic.resources import Node, divide, this_node
from dtensor_magic.spec import ClusterSpec
from dtensor_magic.views.resources import resource_table

GB = 10**9

#: ModelArts' example: 8 GPUs, 72 cores, 512 GB.
PAGE = Node(72, tuple(range(72)), 512 * GB, tuple(str(number) for number in range(8)), "GPU")


def test_one_process_has_the_pages_node_to_itself():
    (share,) = divide(PAGE, 1).shares
    assert (share.cores, share.memory, len(share.accelerators), share.threads) == (72, 512 * GB, 8, None)


def test_a_parameter_server_and_a_worker_share_the_pages_node_by_halves():
    plan = divide(PAGE, 1, ps=1)
    (worker,), (ps,) = plan.clients, plan.ps
    assert (ps.cores, ps.memory, ps.accelerators) == (36, 256 * GB, ())
    assert (worker.cores, worker.memory, worker.accelerators) == (36, 256 * GB, PAGE.accelerators)
    assert (ps.threads, worker.threads) == (36, 36)
    assert set(ps.cpus) | set(worker.cpus) == set(PAGE.cpus)


def test_the_pages_node_is_shown_as_a_table():
    assert resource_table(divide(PAGE, 1, ps=1)).splitlines() == [
        "this node: 8 GPUs, 72 cores, 512.0 GB",
        "",
        "process   accelerators  cores       threads  memory",
        "client 0  GPU 0-7       36 (0-35)   36       256.0 GB",
        "ps 0      none          36 (36-71)  36       256.0 GB",
        "",
        "Set at the start: accelerators, threads, cores. Told, not limited: memory.",
    ]


def test_eight_clients_and_a_parameter_server_on_the_pages_node():
    plan = divide(PAGE, 8, ps=1)
    assert [share.accelerators for share in plan.clients] == [(str(number),) for number in range(8)]
    assert [share.threads for share in plan.clients] == [4] * 8
    assert sum(share.cores for share in plan.clients) == 36
    assert plan.ps[0].cores == 36


@given(st.integers(1, 256), st.integers(1, 40), st.integers(0, 8), st.integers(0, 4), st.booleans())
def test_nothing_is_given_twice_and_nothing_is_left_over(cores, clients, ps, each, quota):
    node = Node(
        cores, () if quota else tuple(range(cores)), 1000 * GB, tuple(str(i) for i in range(each * clients))
    )
    plan = divide(node, clients, ps)
    assert (len(plan.clients), len(plan.ps)) == (clients, ps)
    assert sorted(a for share in plan.shares for a in share.accelerators) == sorted(node.accelerators)
    pinned = [cpu for share in plan.shares for cpu in share.cpus]
    assert len(pinned) == len(set(pinned)) <= cores
    assert not quota or not pinned
    assert sum(share.memory for share in plan.shares) <= 1000 * GB
    for share in plan.shares:
        assert share.cores >= 1
        assert share.threads is None or 1 <= share.threads <= max(1, share.cores)
        assert not share.cpus or len(share.cpus) == share.cores
    if clients + ps > 1 and cores >= 2 * max(clients, ps, 1):
        assert sum(share.cores for share in plan.shares) == cores


def test_accelerators_that_do_not_divide_are_refused():
    with pytest.raises(SpecError, match="8 GPUs do not divide among 3 clients"):
        divide(PAGE, 3)


def test_threads_that_the_user_chose_hold():
    share = divide(PAGE, 2).clients[0]
    assert share.thread_variables({"TF_NUM_INTRAOP_THREADS": "5"}) == {
        "TF_NUM_INTEROP_THREADS": "36",
        "OMP_NUM_THREADS": "36",
        "OPENBLAS_NUM_THREADS": "36",
        "MKL_NUM_THREADS": "36",
    }
    assert divide(PAGE, 1).clients[0].thread_variables({}) == {}


# --- what a container has


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory"),
    [
        ("0::/\n", {"cpu.max": "3600000 100000", "memory.max": str(256 * GB)}, 36.0, 256 * GB),
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        ("0::/pod/c1\n", {"pod/cpu.max": "200000 100000", "pod/c1/cpu.max": "max 100000"}, 2.0, None),
        (
            "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n",
            {
                "cpu/cpu.cfs_quota_us": "150000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/docker/1/memory.limit_in_bytes": "1000",
            },
            1.5,
            1000,
        ),
        ("", {}, None, None),
    ],
)
def test_a_containers_limits_are_read_from_its_control_groups(monkeypatch, tmp_path, own, files, cores, memory):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(cgroup, "_MOUNT", tmp_path)
    monkeypatch.setattr(cgroup, "_OWN", tmp_path / "own")
    assert (cgroup.cpu_quota(), cgroup.memory_limit()) == (cores, memory)


def test_a_quota_bounds_the_cores_and_pins_nobody(monkeypatch):
    monkeypatch.setattr(devices, "usable_cpus", lambda: tuple(range(72)))
    monkeypatch.setattr(cgroup, "cpu_quota", lambda: 36.5)
    monkeypatch.setattr(cgroup, "memory_limit", lambda: 1000)
    node = this_node("CPU", {})
    assert (node.cores, node.cpus, node.memory) == (36, (), 1000)
    assert [(share.threads, share.cpus) for share in divide(node, 2).shares] == [(18, ()), (18, ())]


# --- what is shown before the start, and holds after it


def test_the_command_shows_the_plan(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "dtensor_magic.cli", "plan", "cpu", "-n", "2", "--ps", "1"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith(f"this node: {devices.usable_cores()} core")
    assert [line.split("  ")[0] for line in lines[3:6]] == ["client 0", "client 1", "ps 0"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-n", "0"], "clients: 0 is not a client count"),
        (["--ps", "-1"], "ps: -1 is not a count"),
        (["XPU"], "'XPU' is unknown"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(arguments, says):
    done = subprocess.run(
        [sys.executable, "-m", "dtensor_magic.cli", "plan", *arguments], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_init_plan_shows_the_plan_and_starts_nothing(capsys):
    from IPython.testing.globalipapp import start_ipython

    from dtensor_magic.cluster import registry
    from dtensor_magic.magics import DTensorMagics

    magics = DTensorMagics(start_ipython() or get_ipython())  # noqa: F821 - IPython's own, once it runs
    assert magics.dtensor_init("CPU -n 2 --plan") is None
    assert "client 1  none" in capsys.readouterr().out
    assert registry.all() == []


@pytest.mark.skipif(devices.usable_cores() < 2, reason="one core cannot be divided")
def test_clients_run_on_the_cores_and_with_the_threads_of_the_plan():
    plan = ClusterSpec("CPU", clients=2).plan(os.environ)
    with Cluster.start("CPU", clients=2) as cluster:
        for client, share in enumerate(plan.resources.clients):
            cluster.run(
                "import os\n"
                f"assert os.sched_getaffinity(0) == set({share.cpus}), os.sched_getaffinity(0)\n"
                f"assert tf.config.threading.get_intra_op_parallelism_threads() == {share.threads}",
                on=[client],
            )


def test_clients_whose_threads_the_user_chose_are_not_pinned():
    environ = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1"}
    with Cluster.start("CPU", clients=2, environ=environ) as cluster:
        cluster.run(f"import os\nassert os.sched_getaffinity(0) == set({devices.usable_cpus()})")


def test_pinning_spares_nothing_where_there_are_fewer_cores_than_processes():
    node = Node(2, (0, 1), None)
    assert [(share.cpus, share.threads) for share in divide(node, 4).shares] == [((), 1)] * 4
    assert resources.divides_own_cores({"OMP_NUM_THREADS": "2"})
