"""Bad input: one line that says what is right, before any process starts."""

from __future__ import annotations

import socket

import pytest

from dtensor_magic import devices
from dtensor_magic.cluster import Cluster
from dtensor_magic.errors import NoTensorFlowError, SpecError
from dtensor_magic.spec import ClusterSpec

JOBS = "localhost:15001,localhost:15002"

#: options of a ClusterSpec -> what the line must say
BAD = [
    ({"device_type": "XPU"}, "'XPU' is unknown; it is CPU, GPU or TPU"),
    ({"clients": 0}, "0 is not a client count"),
    ({"clients": -2}, "-2 is not a client count"),
    ({"clients": 5000}, "1 to 1024"),
    ({"clients": 4, "mesh": "batch=3"}, "batch=3 has 3 devices, but 4 clients with 1 device each make 4"),
    ({"clients": 2, "mesh": "batch=3,model=-1"}, "do not divide by 3"),
    ({"clients": 4, "mesh": "batch"}, "'batch' is not name=size"),
    ({"clients": 4, "mesh": "4"}, "'4' is not name=size"),
    ({"clients": 4, "mesh": "batch=2,batch=2"}, "dimension 'batch' stands twice"),
    ({"clients": 4, "mesh": "a=-1,b=-1"}, "only one dimension may be -1"),
    ({"clients": 4, "mesh": "a=0"}, "a=0 is no size"),
    ({"clients": 4, "mesh": "a=-3"}, "a=-3 is no size"),
    ({"clients": 4, "mesh": "unsharded=4"}, "word of DTensor's own"),
    ({"clients": 4, "mesh": "a=2,"}, "'' is not name=size"),
    ({"clients": 2, "jobs": "localhost"}, "'localhost' is not host:port"),
    ({"clients": 2, "jobs": "localhost:1,"}, "an address is empty"),
    ({"clients": 2, "jobs": ":15001,localhost:15002"}, "':15001' is not host:port"),
    ({"clients": 2, "jobs": "local host:15001,localhost:15002"}, "'local host'"),
    ({"clients": 2, "jobs": "localhost:15001,localhost:15001"}, "localhost:15001 stands twice"),
    ({"clients": 3, "jobs": JOBS}, "2 addresses for 3 clients"),
    ({"clients": 2, "jobs": "localhost:0,localhost:1"}, "port 0 is out of range; ports are 1 to 65535"),
    ({"clients": 2, "jobs": "localhost:70000,localhost:1"}, "port 70000 is out of range"),
    ({"clients": 2, "jobs": "localhost:x,localhost:1"}, "'x' is not a port number"),
    ({"clients": 2, "jobs": "/bns/a/1:p,/bns/a/0:p"}, "in the order of their task number: /bns/a/0:p,/bns/a/1:p"),
    ({"clients": 2, "jobs": "/bns/a/x:p,/bns/a/0:p"}, "does not end in a task number"),
    ({"clients": 2, "jobs": "far-away.invalid:15001,localhost:15002"}, "not on this host"),
    ({"here": True, "jobs": JOBS, "client_id": 2}, "client id 2 is out of range: it is 0 to 1"),
    ({"here": True, "jobs": JOBS, "client_id": -1}, "client id -1 is out of range"),
    ({"here": True, "jobs": "far-away.invalid:15001,localhost:15002"}, "not this host's"),
    ({"clients": 2, "client_id": 1}, "--client-id is for the notebook kernel"),
    ({"here": True, "clients": 2}, "needs all their addresses"),
    ({"here": True, "background": True}, "exclude each other"),
    ({"logical_cpus": 0}, "0 is not a count"),
    ({"device_type": "GPU"}, "no GPU is visible"),
    ({"device_type": "TPU", "clients": 2}, "one client per host"),
    ({"device_type": "TPU"}, "this host has none"),
    ({"name": "a b"}, "letters, digits"),
    ({"name": "../x"}, "letters, digits"),
    ({"job_name": "my job"}, "a letter, then letters, digits or '_'"),
    ({"job_name": "9lives"}, "a letter, then letters, digits or '_'"),
    ({"clients": 2, "env": {"1A": "x"}}, "'1A' is not the name of a variable"),
    ({"clients": 2, "env": {"DTENSOR_JOBS": "x"}}, "give that instead"),
    ({"env": {"A": "x"}}, "--env is for background clients"),
    ({"timeout": 0}, "0 is not a time"),
    ({"clients": 2, "start_method": "spawn"}, "it is fork or exec"),
    ({"isolate": True}, "--isolate is for background clients"),
    ({"clients": 2, "isolate": True, "start_method": "exec"}, "needs --start-method fork"),
]


@pytest.mark.parametrize(("options", "says"), BAD, ids=lambda value: str(value)[:50])
def test_bad_input_is_one_line_that_says_what_is_right(options, says):
    with pytest.raises(SpecError) as caught:
        ClusterSpec(**options).plan({})
    line = str(caught.value)
    assert says in line
    assert "\n" not in line


def test_bad_input_starts_no_process():
    from dtensor_magic.launchers import local

    local.stop_agent()
    with pytest.raises(SpecError):
        Cluster.start("CPU", clients=4, mesh="batch=3")
    assert local.current_agent() is None


def test_unknown_option_of_start_is_named():
    with pytest.raises(SpecError, match="clints"):
        Cluster.start("CPU", clints=3)


def test_port_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"port {port} of localhost:{port} is already in use"):
            Cluster.start("CPU", clients=2, jobs=f"localhost:{port},localhost:15002")


def test_own_port_of_a_notebook_client_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"port {port} "):
            Cluster.start("CPU", here=True, jobs=f"localhost:15002,localhost:{port}", client_id=1)


@pytest.mark.parametrize(
    ("options", "environ", "warns"),
    [
        ({"megcore": True, "clients": 2}, {}, "megcore is for TPU"),
        ({"parallel_executor": "pw", "clients": 2}, {}, "does not read DTENSOR_USE_PARALLEL_EXECUTOR"),
        ({}, {"DTENSOR_JOBS": ""}, "DTENSOR_JOBS is set but empty: local mode"),
        ({"clients": 2, "reset_context": True}, {}, "no effect on background clients"),
    ],
)
def test_what_has_no_effect_is_said(options, environ, warns):
    plan = ClusterSpec(device_type="CPU", **options).plan(environ)
    assert any(warns in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("options", "environ", "mode", "clients"),
    [
        ({}, {}, "local", 1),
        ({"clients": 1}, {}, "local", 1),
        ({"clients": 1, "background": True}, {}, "clients", 1),
        ({"clients": 3}, {}, "clients", 3),
        ({}, {"DTENSOR_JOBS": JOBS}, "here", 2),
        ({}, {"DTENSOR_JOBS": " "}, "local", 1),
        ({"clients": 3}, {"DTENSOR_JOBS": JOBS}, "clients", 3),
        ({"here": True}, {"DTENSOR_JOBS": JOBS, "DTENSOR_CLIENT_ID": "1"}, "here", 2),
        ({"here": True, "clients": 2, "jobs": JOBS}, {}, "here", 2),
        ({"background": True}, {"DTENSOR_JOBS": JOBS}, "clients", 1),
    ],
)
def test_where_the_clients_run(options, environ, mode, clients):
    plan = ClusterSpec(device_type="cpu", **options).plan(environ)
    assert (plan.mode, plan.clients, plan.device_type) == (mode, clients, "CPU")


def test_minus_one_is_what_is_left():
    plan = ClusterSpec(clients=4, logical_cpus=2, mesh="batch=-1,model=2").plan({})
    assert plan.mesh is not None
    assert plan.mesh.dims == (("batch", 4), ("model", 2))


def test_local_mode_unsets_jobs_and_never_sets_them_empty():
    plan = ClusterSpec(device_type="CPU").plan({"DTENSOR_JOBS": ""})
    assert plan.client(0, plan.jobs).variables()["DTENSOR_JOBS"] is None


def test_clients_get_every_variable_that_tensorflow_reads():
    plan = ClusterSpec(device_type="CPU", clients=2, job_name="trainer", parallel_executor="pw").plan({})
    assert plan.client(1, ("a:1", "b:2")).variables() == {
        "DTENSOR_JOBS": "a:1,b:2",
        "DTENSOR_CLIENT_ID": "1",
        "DTENSOR_NUM_CLIENTS": "2",
        "DTENSOR_JOB_NAME": "trainer",
        "DTENSOR_USE_PARALLEL_EXECUTOR": "pw",
    }


def test_gpus_are_shared_evenly_and_as_cuda_names_them(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", lambda environ: ["0", "2", "3", "5"])
    plan = ClusterSpec(device_type="gpu", clients=2, mesh="batch=-1").plan({})
    assert plan.accelerators == (("0", "2"), ("3", "5"))
    assert str(plan.mesh) == "batch=4"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"clients": 3}, "4 GPUs do not divide among 3 clients"),
        ({"clients": 2, "logical_cpus": 1}, "1 are fewer than the 2 GPUs of a client"),
    ],
)
def test_gpus_that_do_not_fit_are_refused(monkeypatch, options, says):
    monkeypatch.setattr(devices, "visible_gpus", lambda environ: ["0", "1", "2", "3"])
    with pytest.raises(SpecError, match=says):
        ClusterSpec(device_type="GPU", **options).plan({})


@pytest.mark.parametrize(
    ("chosen", "visible"),
    [(None, ["0", "1"]), ("", []), ("1", ["1"]), ("-1", []), ("0,7,1", ["0"]), ("GPU-abc", ["GPU-abc"])],
)
def test_visible_gpus_follow_cuda_visible_devices(monkeypatch, tmp_path, chosen, visible):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:02:00.0").mkdir()
    monkeypatch.setattr(devices, "_NVIDIA_DEVICES", tmp_path)
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert devices.visible_gpus(environ) == visible


def test_without_tensorflow_one_line_says_which_build_to_install(monkeypatch):
    monkeypatch.setattr(devices, "tensorflow_folder", lambda: None)
    with pytest.raises(NoTensorFlowError, match=r"pip install 'dtensor-magic\[cpu\]'"):
        ClusterSpec(device_type="CPU", clients=2).plan({})
