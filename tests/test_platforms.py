"""What platforms say about a job is read as they mean it; TensorFlow's own resolvers are the oracle."""

from __future__ import annotations

import json
import os
import socket
import string
import subprocess
import sys
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtensor_magic.errors import SpecError
from dtensor_magic.platforms import slurm
from dtensor_magic.platforms.description import JobDescription
from dtensor_magic.platforms.detect import READERS, detect, read
from dtensor_magic.platforms.variables import addresses
from dtensor_magic.spec import ClusterSpec

HOSTS = st.lists(
    st.text(string.ascii_lowercase, min_size=1, max_size=6).flatmap(
        lambda name: st.integers(0, 120).map(lambda number: f"{name}-{number}.job")
    ),
    min_size=1,
    max_size=8,
    unique=True,
)
PORTS = st.integers(5000, 10000)
INDEX = st.integers(0, 1000)


#: What a ``TF_CONFIG`` without a cluster says.
LOCAL = JobDescription("tf_config", "TF_CONFIG")


def refusal(read: Callable[[], object]) -> str:
    """Return the line with which `read` refuses, or nothing."""
    try:
        read()
    except SpecError as error:
        return str(error)
    return ""


def with_ports(hosts: list[str], ports: list[int]) -> list[str]:
    return [f"{host}:{ports[index % len(ports)]}" for index, host in enumerate(hosts)]


# --- ModelArts


@given(
    HOSTS,
    st.lists(PORTS, min_size=1),
    INDEX,
    st.sampled_from(["[{}]", "{}", "[ {} ]"]),
    st.sampled_from(["worker", "work", "Worker"]),
)
def test_a_modelarts_worker_is_the_client_of_its_index(hosts, ports, index, form, name):
    workers = with_ports(hosts, ports)
    environ = {
        "VC_TASK_INDEX": str(index % len(hosts)),
        "TF_PS_HOSTS": form.format("ps-0:5000"),
        "TF_WORKER_HOSTS": form.format(",".join(workers)),
        "MA_TASK_NAME": name,
        "VC_WORKER_NUM": str(len(workers)),
        "MA_NUM_HOSTS": str(len(workers)),
        "MA_NUM_GPUS": "8",
    }
    found = detect(environ)
    assert found.platform == "modelarts"
    assert found.clients == tuple(workers)
    assert found.ps == ("ps-0:5000",)
    assert found.client_id == index % len(hosts)
    assert found.jobs == (tuple(workers) if len(workers) > 1 else ())
    assert found.accelerators == 8


@given(HOSTS, INDEX, st.sampled_from(["ps", "PS"]))
def test_a_modelarts_parameter_server_is_no_client(hosts, index, name):
    servers = [f"ps-{host}:5001" for host in hosts]
    environ = {
        "VC_TASK_INDEX": str(index % len(hosts)),
        "TF_PS_HOSTS": f"[{','.join(servers)}]",
        "TF_WORKER_HOSTS": f"[{','.join(with_ports(hosts, [5002]))}]",
        "MA_TASK_NAME": name,
    }
    found = detect(environ)
    assert (found.role, found.index) == ("ps", index % len(hosts))
    with pytest.raises(SpecError, match="holds no DTensor client; dtensor-magic launch runs it"):
        ClusterSpec("CPU").plan(environ)


@given(st.text(max_size=5), st.sampled_from([{}, {"VC_WORKER_HOSTS": "job-worker-0.job"}]))
def test_on_one_modelarts_node_the_task_index_means_nothing(index, hosts):
    found = detect({"MA_NUM_HOSTS": "1", "MA_TASK_NAME": "worker", "VC_TASK_INDEX": index, **hosts})
    assert found.alone
    assert (found.jobs, found.client_id) == ((), 0)


def test_modelarts_hosts_without_ports_get_one_and_the_own_address_is_told():
    environ = {
        "VC_WORKER_HOSTS": "w-0.j,w-1.j",
        "MA_NUM_HOSTS": "2",
        "VC_TASK_INDEX": "1",
        "MA_CURRENT_IP": "10.0.0.2",
    }
    assert detect(environ).clients == ("w-0.j:2222", "w-1.j:2222")
    assert detect({**environ, "DTENSOR_MAGIC_PORT": "7000"}).clients == ("w-0.j:7000", "w-1.j:7000")
    assert str(detect(environ)).endswith("client 1 of 2, w-0.j:2222,w-1.j:2222, on 10.0.0.2")


# --- TF_CONFIG, with TensorFlow's resolver and its own count of tasks as the oracle


@given(
    st.booleans(),
    HOSTS,
    st.lists(st.just("ps"), max_size=3),
    INDEX,
    st.booleans(),
    st.booleans(),
    st.sampled_from([{}, {"environment": "cloud"}, {"rpc_layer": "grpc"}]),
)
def test_tf_config_counts_clients_as_multi_worker_mirrored_strategy_does(
    chief, hosts, servers, index, as_text, sparse, more
):
    import tensorflow as tf
    from tensorflow.python.distribute import multi_worker_util

    workers = with_ports(hosts, [2222])
    cluster: dict = {"worker": {str(i): address for i, address in enumerate(workers)} if sparse else workers}
    if chief:
        cluster["chief"] = ["chief-0:2222"]
    if servers:
        cluster["ps"] = [f"ps-{number}:2222" for number in range(len(servers))]
    roles = [("worker", i) for i in range(len(workers))] + [("chief", 0)] * chief
    role, number = roles[index % len(roles)]
    task = {"type": role, "index": str(number) if as_text else number}
    environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, **more})}
    found = detect(environ)
    with mock.patch.dict(os.environ, environ):
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        spec = resolver.cluster_spec()
        assert (found.role, found.index) == (resolver.task_type, resolver.task_id)
    assert {role: tuple(tasks) for role, tasks in spec.as_dict().items()} == found.tasks
    assert found.client_id == multi_worker_util.id_in_cluster(spec, role, number)
    assert len(found.clients) == multi_worker_util.worker_count(spec, role)
    assert found.clients[found.client_id] == spec.task_address(role, number)


@given(HOSTS, st.booleans())
def test_tf_config_master_means_chief(hosts, own):
    task = {"type": "master" if own else "worker", "index": 0}
    cluster = {"master": ["m:2222"], "worker": with_ports(hosts, [2222])}
    found = detect({"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})})
    assert found.clients == ("m:2222", *with_ports(hosts, [2222]))
    assert found.client_id == (0 if own else 1)


@given(HOSTS)
def test_tf_config_evaluator_is_no_client(hosts):
    cluster = {"worker": with_ports(hosts, [2222])}
    found = detect({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}})})
    assert (found.role, found.jobs) == ("evaluator", ())


@pytest.mark.parametrize("text", ["{}", '{"cluster": {}}', '{"task": {"type": "worker", "index": 0}}'])
def test_tf_config_without_a_cluster_is_local_mode(text):
    assert detect({"TF_CONFIG": text}).alone


def test_a_sparse_tf_config_serves_a_parameter_server_and_no_client():
    cluster = {"ps": ["ps0:2222", "ps1:2222"], "worker": {"1": "w1:2222"}}
    with pytest.raises(SpecError, match="worker 0 is not in it.*enableDynamicWorker"):
        detect({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})})
    kubeflow = {"sparseCluster": {"ps": ["ps0:2222"], "worker": {}}, "task": {"type": "ps", "index": 0}}
    assert detect({"TF_CONFIG": json.dumps(kubeflow)}).ps == ("ps0:2222",)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4).map(json.dumps))
def test_tf_config_that_is_none_is_one_line(text):
    line = refusal(lambda: detect({"TF_CONFIG": text}))
    # An empty one, and one without a cluster, are none or local mode.
    assert line.startswith("TF_CONFIG: ") if line else detect({"TF_CONFIG": text}) in (None, LOCAL)
    assert "\n" not in line


# --- Slurm


@st.composite
def slurm_steps(draw):
    """A step of Slurm: its nodes, in numeric order, and the tasks on each."""
    width = draw(st.integers(0, 3))
    numbers = draw(st.lists(st.integers(0, 999 if width else 40), min_size=1, max_size=8, unique=True).map(sorted))
    counts = draw(st.lists(st.integers(1, 4), min_size=len(numbers), max_size=len(numbers)))
    return [str(number).zfill(width) for number in numbers], counts


def compressed(names: list[str]) -> str:
    """Write a node list as Slurm does: runs of numbers of the same width as ranges."""
    runs: list[list[str]] = []
    for name in names:
        if runs and len(name) == len(runs[-1][-1]) and int(name) == int(runs[-1][-1]) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return "n[" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"


def counted(counts: list[int]) -> str:
    parts: list[tuple[int, int]] = []
    for count in counts:
        if parts and parts[-1][0] == count:
            parts[-1] = (count, parts[-1][1] + 1)
        else:
            parts.append((count, 1))
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)


def slurm_environ(names: list[str], counts: list[int], rank: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(sum(counts)),
        "SLURM_STEP_NODELIST": compressed(names),
        "SLURM_STEP_TASKS_PER_NODE": counted(counts),
    }


@given(slurm_steps(), INDEX)
def test_slurm_ranks_are_where_tensorflows_resolver_has_them(step, rank):
    import tensorflow as tf

    names, counts = step
    environ = {**slurm_environ(names, counts, rank % sum(counts)), "DTENSOR_MAGIC_PORT": "8888"}
    found = read("slurm", environ)
    with mock.patch.dict(os.environ, environ):
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=4, gpus_per_task=1, auto_set_gpu=False
        )
        theirs = resolver.cluster_spec().as_dict()["worker"]
    # Theirs sorts hosts as text, so that n10 comes before n9; as sets they are the same, and as lists where text
    # and number sort alike.
    assert sorted(found.clients) == sorted(theirs)
    if sorted(names) == names:
        assert list(found.clients) == theirs
    assert found.client_id == rank % sum(counts)


def test_slurm_counts_node_9_before_node_10():
    environ = slurm_environ(["9", "10"], [1, 1], 1)
    assert [client.partition(":")[0] for client in read("slurm", environ).clients] == ["n9", "n10"]


@given(slurm_steps())
def test_a_slurm_node_list_expands_as_tensorflow_expands_it(step):
    from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import (
        expand_hostlist,
        expand_tasks_per_node,
    )

    names, counts = step
    for text in (compressed(names), f"login,{compressed(names)},m[1-2],x7"):
        assert slurm.expand_nodes(text) == expand_hostlist(text)
    assert slurm.expand_counts(counted(counts)) == expand_tasks_per_node(counted(counts)) == counts


def test_a_slurm_node_list_may_have_several_ranges_and_a_suffix():
    assert slurm.expand_nodes("r[1-2]n[08-10]-ib") == [f"r{r}n{n}-ib" for r in (1, 2) for n in ("08", "09", "10")]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 3))
def test_every_slurm_distribution_places_each_task_once(counts, plane):
    everywhere = {(node, local) for node, count in enumerate(counts) for local in range(count)}
    for word in ("", "block", "cyclic", "block:cyclic", "plane"):
        places = slurm.distribute(counts, word, str(plane))
        assert len(places) == len(everywhere)
        assert set(places) == everywhere
    assert slurm.distribute(counts, "block") == sorted(everywhere)


def test_slurm_cyclic_and_plane_go_round_the_nodes():
    assert slurm.distribute([2, 3], "cyclic") == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]
    assert slurm.distribute([4, 4], "plane", "2") == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3),
    ]  # fmt: skip


def test_two_slurm_jobs_on_one_node_use_other_ports():
    first, second = (read("slurm", {**slurm_environ(["1"], [2], 0), "SLURM_JOB_ID": job}) for job in ("77", "78"))
    assert not set(first.clients) & set(second.clients)


def test_slurm_outside_a_step_says_nothing():
    batch = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert detect(batch) is None
    with pytest.raises(SpecError, match="start it with srun"):
        read("slurm", batch)


# --- SageMaker, Volcano, GKE


@given(HOSTS, INDEX)
def test_sagemaker_is_read_as_tensorflows_resolver_reads_it(hosts, index):
    from tensorflow.python.distribute.cluster_resolver.sagemaker_cluster_resolver import SageMakerClusterResolver

    environ = {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": hosts[index % len(hosts)]}
    found = detect(environ)
    with mock.patch.dict(os.environ, environ):
        resolver = SageMakerClusterResolver()
        assert list(found.clients) == resolver.cluster_spec().as_dict()["worker"]
        assert (found.role, found.index) == (resolver.task_type, resolver.task_id)


def volcano_environ(workers: int, servers: int, chief: int, pod: str, index: int) -> dict[str, str]:
    lists = {"WORKER": workers, "PS": servers, "MASTER": chief}
    environ = {"HOSTNAME": pod, "VC_TASK_INDEX": str(index)}
    for task, count in lists.items():
        if count:
            environ[f"VC_{task}_HOSTS"] = ",".join(f"job-{task.lower()}-{i}.job" for i in range(count))
            environ[f"VC_{task}_NUM"] = str(count)
    return environ


@given(st.integers(1, 30), st.integers(0, 3), st.integers(0, 1), INDEX)
def test_a_volcano_pod_is_found_by_its_name(workers, servers, chief, index):
    pods = [("worker", i) for i in range(workers)] + [("ps", i) for i in range(servers)] + [("master", 0)] * chief
    task, number = pods[index % len(pods)]
    found = detect(volcano_environ(workers, servers, chief, f"job-{task}-{number}", number))
    assert (found.role, found.index) == ("chief" if task == "master" else task, number)
    if task != "ps" and found.jobs:
        assert found.clients[found.client_id] == f"job-{task}-{number}.job:2222"


def test_volcanos_two_plugins_agree_and_the_ports_of_tf_config_hold():
    environ = volcano_environ(2, 1, 0, "job-worker-1", 1)
    cluster = {"worker": ["job-worker-0.job:3333", "job-worker-1.job:3333"], "ps": ["job-ps-0.job:3333"]}
    environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    found = detect(environ)
    assert found.platform == "tf_config"
    assert found.clients == ("job-worker-0.job:3333", "job-worker-1.job:3333")


@given(HOSTS, INDEX, st.booleans())
def test_a_gke_tpu_host_is_the_client_of_its_worker_id(hosts, index, ports):
    names = ",".join(f"{host}:8470" if ports else host for host in hosts)
    found = detect({"TPU_WORKER_ID": str(index % len(hosts)), "TPU_WORKER_HOSTNAMES": names})
    assert found.clients == tuple(f"{host}:2222" for host in hosts)
    assert found.client_id == (index % len(hosts) if len(hosts) > 1 else 0)


def test_a_tpu_vm_of_its_own_is_local_mode():
    assert detect({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}).jobs == ()


# --- which one


def test_where_nobody_says_anything_there_is_nothing():
    assert detect({"HOME": "/root"}) is None
    assert detect({"DTENSOR_JOBS": " ", "TF_CONFIG": ""}) is None


def test_two_that_agree_are_fine():
    jobs = "job-worker-0.job:5000,job-worker-1.job:5000"
    environ = {"TF_WORKER_HOSTS": f"[{jobs}]", "MA_TASK_NAME": "worker", "VC_TASK_INDEX": "1"}
    assert detect({**environ, "DTENSOR_JOBS": jobs, "DTENSOR_CLIENT_ID": "1"}).platform == "dtensor"
    # One process alone contradicts nobody: it may be a client of more.
    step = slurm_environ(["1"], [1], 0)
    assert detect({**step, "DTENSOR_JOBS": jobs}).platform == "dtensor"


@pytest.mark.parametrize(
    "changed",
    [
        {"DTENSOR_CLIENT_ID": "0"},
        {"DTENSOR_JOBS": "a:1,c:1"},
        {"DTENSOR_JOBS": "a:1,b:2"},
        {"DTENSOR_JOBS": "a:1,b:1,c:1"},
    ],
)
def test_two_that_disagree_are_an_error_that_shows_both(changed):
    environ = {"DTENSOR_JOBS": "a:1,b:1", "DTENSOR_CLIENT_ID": "1", **changed}
    environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    )
    with pytest.raises(SpecError) as caught:
        detect(environ)
    line = str(caught.value)
    assert "dtensor and tf_config disagree" in line
    assert environ["DTENSOR_JOBS"] in line
    assert "client 1 of 2, a:1,b:1" in line
    assert "--from dtensor or --from tf_config" in line
    assert "\n" not in line
    assert detect({**environ, "DTENSOR_MAGIC_FROM": "tf_config"}).platform == "tf_config"
    assert read("tf_config", environ).clients == ("a:1", "b:1")


@pytest.mark.parametrize(
    ("platform", "environ", "says"),
    [
        ("slrum", {}, "platform 'slrum' is unknown; did you mean slurm?"),
        ("xyz", {}, f"it is {', '.join(READERS)}."),
        ("kubeflow", {}, "TF_CONFIG: not set here"),
        ("GKE-TPU", {}, "TPU_WORKER_HOSTNAMES is not set"),
        ("sagemaker", {}, "SM_HOSTS and SM_CURRENT_HOST"),
        ("sagemaker", {"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "b"}, "'b' is not one of SM_HOSTS a"),
        ("sagemaker", {"SM_HOSTS": "a,b", "SM_CURRENT_HOST": "b"}, "SM_HOSTS: not JSON"),
        ("volcano", {}, "VC_WORKER_HOSTS is not set"),
        ("volcano", {"VC_WORKER_HOSTS": "a,b", "VC_PS_HOSTS": "c", "HOSTNAME": "x"}, "'x' is in none of VC_WORKER"),
        ("volcano", {"VC_WORKER_HOSTS": "a,b", "VC_TASK_INDEX": "2"}, "there is no worker 2; there is only 0 to 1"),
        ("modelarts", {"MA_NUM_HOSTS": "2"}, "2 nodes, but neither TF_WORKER_HOSTS nor VC_WORKER_HOSTS"),
        ("modelarts", {"TF_WORKER_HOSTS": "a:1,b:2"}, "VC_TASK_INDEX: not set"),
        ("modelarts", {"TF_WORKER_HOSTS": "a:1,b:2", "VC_TASK_INDEX": "2"}, "VC_TASK_INDEX: there is no worker 2"),
        ("modelarts", {"TF_WORKER_HOSTS": "a:1,b:2", "VC_TASK_INDEX": "x"}, "'x' is not a whole number"),
        ("modelarts", {"TF_WORKER_HOSTS": "a:1,a:1"}, "TF_WORKER_HOSTS: a:1 stands twice"),
        ("modelarts", {"TF_WORKER_HOSTS": "a:1,b:99999"}, "TF_WORKER_HOSTS: 'b:99999': port 99999 is out of range"),
        ("modelarts", {"TF_WORKER_HOSTS": "a:1", "MA_TASK_NAME": "boss"}, "'boss' is no task"),
        (
            "modelarts",
            {"TF_WORKER_HOSTS": "a:1,b:1", "VC_TASK_INDEX": "0", "VC_WORKER_NUM": "3"},
            "3 workers are decl",
        ),
        ("slurm", {**slurm_environ(["1"], [2], 0), "SLURM_STEP_NUM_TASKS": "3"}, "do not fit each other"),
        ("slurm", {**slurm_environ(["1"], [2], 0), "SLURM_STEP_NODELIST": "n[1"}, "is not a node list"),
        ("slurm", {**slurm_environ(["1"], [2], 0), "SLURM_STEP_NODELIST": "n[2-1]"}, "is not a range"),
        ("slurm", {**slurm_environ(["1"], [2], 0), "SLURM_DISTRIBUTION": "arbitrary"}, "srun -m block"),
        (
            "slurm",
            {**slurm_environ(["1", "2"], [2, 2], 1), "SLURM_NODEID": "1"},
            "rank 1 has SLURM_NODEID 1 and not 0",
        ),
        ("tf_config", {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}, "task is missing"),
        ("tf_config", {"TF_CONFIG": '{"cluster": {"boss": ["a:1"]}}'}, "'boss' is no job"),
        ("dtensor", {"DTENSOR_JOBS": "a:1,b:1", "DTENSOR_CLIENT_ID": "x"}, "DTENSOR_CLIENT_ID: 'x' is not a whole"),
        ("slurm", {**slurm_environ(["1"], [2], 0), "DTENSOR_MAGIC_PORT": "0"}, "DTENSOR_MAGIC_PORT: port 0"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(platform, environ, says):
    with pytest.raises(SpecError) as caught:
        read(platform, environ)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(string.ascii_lowercase + "[]:,.'\" 0123456789", max_size=20))
def test_a_list_of_addresses_is_one_or_is_refused_in_one_line(text):
    line = refusal(lambda: addresses(text, "TF_PS_HOSTS"))
    assert "\n" not in line
    if line:
        assert line.startswith("TF_PS_HOSTS: ")
    else:
        assert all(address.rpartition(":")[2].isdigit() for address in addresses(text, "TF_PS_HOSTS")[0])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a:1,b:2]", ("a:1", "b:2")),
        (' ["a:1", "b:2"] ', ("a:1", "b:2")),
        ("a,b:3", ("a:2222", "b:3")),
        ("[::1]", ("[::1]:2222",)),
        ("[[::1]:5,[::2]]", ("[::1]:5", "[::2]:2222")),
        ("[]", ()),
    ],
)
def test_addresses_come_with_and_without_brackets_quotes_and_ports(text, found):
    assert addresses(text, "x")[0] == found


# --- in a notebook


def step_of_this_host(rank: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": ["localhost:15001", "localhost:15002"]}, "task": {"type": "worker", "index": rank}})}  # fmt: skip


def test_the_notebook_kernel_is_the_client_that_the_platform_says_and_that_is_told():
    plan = ClusterSpec("CPU").plan(step_of_this_host(1))
    assert (plan.mode, plan.clients, plan.client_id) == ("here", 2, 1)
    assert plan.warnings[0] == "read from tf_config (TF_CONFIG): client 1 of 2, localhost:15001,localhost:15002."
    assert plan.client(plan.client_id, plan.jobs).variables()["DTENSOR_CLIENT_ID"] == "1"
    assert ClusterSpec("CPU", platform="tf-config").plan(step_of_this_host(0)).client_id == 0


def test_accelerators_that_the_platform_gave_and_nobody_sees_are_told():
    alone = {"MA_NUM_HOSTS": "1", "MA_NUM_GPUS": "8", "CUDA_VISIBLE_DEVICES": ""}
    read_from, unseen = ClusterSpec().plan(alone).warnings
    assert read_from == "read from modelarts (one node): one process alone, local mode."
    assert unseen.startswith("modelarts gives this node 8 accelerators, but 0 can be seen")
    assert ClusterSpec().plan({**alone, "MA_NUM_GPUS": "0"}).warnings == (read_from,)
    assert ClusterSpec("CPU").plan(alone).warnings == (read_from,)


@pytest.mark.parametrize("options", [{"clients": 1}, {"clients": 3}, {"background": True}])
def test_options_of_ones_own_go_before_the_platform(options):
    plan = ClusterSpec("CPU", **options).plan(step_of_this_host(1))
    assert plan.mode != "here"
    assert plan.warnings == ()
    with pytest.raises(SpecError, match="leave out -n"):
        ClusterSpec("CPU", platform="tf_config", **options).plan(step_of_this_host(1))


def test_addresses_of_ones_own_go_before_the_platform():
    plan = ClusterSpec("CPU", jobs="localhost:15003,localhost:15004", client_id=1).plan(step_of_this_host(0))
    assert plan.jobs == ("localhost:15003", "localhost:15004")


_SCRIPT = """
from dtensor_magic import Cluster
cluster = Cluster.start("CPU", mesh="x=2")
cluster.run("x = dtensor.call_with_layout(tf.ones, dtensor.Layout(['x'], mesh), shape=(2,))")
cluster.run("print(int(tf.reduce_sum(x)), client_id, dtensor.client_id())")
"""


def test_each_process_of_a_tf_config_job_is_the_client_that_it_says():
    ports = []
    for _ in range(2):
        with socket.create_server(("", 0)) as free:
            ports.append(free.getsockname()[1])
    cluster = {"chief": [f"localhost:{ports[0]}"], "worker": [f"localhost:{ports[1]}"]}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": "0"}})},
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in ("chief", "worker")
    ]
    try:
        said = [process.communicate(timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert said == ["2 0 0\n", "2 1 1\n"]
