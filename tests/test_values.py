"""Values to the clients and back, on real clients."""

from __future__ import annotations

import inspect
import pickle
import stat
import threading

import ml_dtypes
import numpy as np
import psutil
import pytest
from conftest import everywhere, our_processes

from dtensor_magic import Cluster, shared_memory
from dtensor_magic.errors import (
    SpecError,
    TransferError,
)
from dtensor_magic.per_client import PerClient, alike

VALUES = {
    "float32": np.arange(12, dtype="float32").reshape(3, 4),
    "bfloat16": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
    "float8": np.arange(4).astype(ml_dtypes.float8_e5m2),
    "boolean": np.array([[True, False]]),
    "complex64": np.array([1 + 2j, -3j], "complex64"),
    "uint16": np.arange(9999, dtype="uint16"),
    "text": np.array(["a", "längst"]),
    "raw": np.array([b"a\0", b"bc"]),
    "objects": np.array([None, "x", {"y": 1}], dtype=object),
    "dates": np.array(["2024-01-01", "NaT"], "datetime64[D]"),
    "record": np.array([(1, 2.5)], [("i", "i4"), ("f", "f8")]),
    "swapped": np.arange(5, dtype=">i4"),
    "empty": np.empty((0, 3), "float16"),
    "scalar": np.array(7.5),
    "strided": np.arange(6000).reshape(60, 100)[::2, ::-3],
    "fortran": np.asfortranarray(np.arange(6000.0).reshape(60, 100)),
    "frozen": np.broadcast_to(np.arange(2000.0), (3, 2000)),
}


def digest(array):
    """Say what an array is; it runs on the clients too, where an array that came back would prove nothing."""
    import hashlib

    content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return hashlib.sha256(repr((array.dtype.str, array.dtype.name, array.shape)).encode() + content).hexdigest()


SETUP = "import numpy as np, os, signal\n" + inspect.getsource(digest)


pytestmark = pytest.mark.usefixtures("no_transfer_left")


@pytest.fixture(scope="module", params=[1, 4])
def cluster(request):
    """Background clients with `digest`; nothing is left of any transfer in the end."""
    with Cluster.start(
        "CPU", clients=request.param, mesh=f"x={request.param}", background=request.param == 1
    ) as started:
        started.run(SETUP)
        yield started


@pytest.fixture(scope="module")
def four():
    with Cluster.start("CPU", clients=4, mesh="x=4", name="four") as started:
        started.run(SETUP)
        yield started


def test_arrays_of_every_kind_arrive_on_every_client_and_come_back(cluster):
    cluster.push(VALUES)
    names = repr(tuple(VALUES))
    theirs = everywhere(cluster, f"{{name: digest(globals()[name]) for name in {names}}}")
    assert eval(theirs) == {name: digest(array) for name, array in VALUES.items()}
    back = cluster.pull(list(VALUES))
    assert list(back) == list(VALUES)
    for name, array in VALUES.items():
        assert digest(back[name]) == digest(array), name
        assert type(back[name]) is np.ndarray, name


def test_arrays_are_writable_private_and_keep_their_order(cluster):
    array = np.zeros(5000)
    cluster.push({"array": array, "fortran": VALUES["fortran"], "frozen": VALUES["frozen"]})
    assert everywhere(cluster, "fortran.flags.f_contiguous, frozen.flags.writeable") == "(True, True)"
    cluster.run("array += client_id + 1")
    back = cluster.pull("array")
    values = {client: array[0] for client, array in back.items()} if len(cluster.clients) > 1 else {0: back[0]}
    assert values == {client: client + 1 for client in cluster.clients}
    assert array[0] == 0


def test_tensors_arrive_as_tensors(cluster):
    import tensorflow as tf

    tensors = {
        "t": tf.reshape(tf.range(6000, dtype=tf.float32), (60, 100)),
        "half": tf.cast([1.5, 2.5], tf.bfloat16),
        "flags": tf.constant([True, False]),
        "words": tf.constant([["a\0"], ["b"]]),
        "word": tf.constant("z\0"),
        "no_words": tf.constant([], tf.string),
        "nothing": tf.zeros((0, 2), tf.complex128),
        "ragged": tf.ragged.constant([[1, 2], [3]]),
        "variable": tf.Variable([1.0, 2.0], name="v", trainable=False),
    }
    cluster.push(tensors)
    types = everywhere(
        cluster,
        "[(isinstance(v, tf.Tensor), v.dtype.name, tuple(v.shape)) for v in (t, half, flags, words, word, no_words, nothing)]",
    )
    assert eval(types) == [
        (True, "float32", (60, 100)),
        (True, "bfloat16", (2,)),
        (True, "bool", (2,)),
        (True, "string", (2, 1)),
        (True, "string", ()),
        (True, "string", (0,)),
        (True, "complex128", (0, 2)),
    ]
    assert everywhere(cluster, "float(tf.reduce_sum(t)), word.numpy()") == "(17997000.0, b'z\\x00')"
    assert everywhere(cluster, "variable.name, variable.trainable, variable.numpy().tolist()") == (
        "('v:0', False, [1.0, 2.0])"
    )
    back = cluster.pull(list(tensors))
    for name, tensor in tensors.items():
        assert type(back[name]) is type(tensor), name
        assert bool(tf.reduce_all(tf.equal(back[name], tensor))), name


def test_any_picklable_value_arrives_and_what_values_share_stays_shared(cluster):
    class Pair:
        def __init__(self, left):
            self.left = left

    shared = [1, 2]
    twice = 2
    cluster.push(
        {"pair": Pair(shared), "shared": shared, "f": lambda x: x * twice, "n": None, "d": {"k": (1, b"")}}
    )
    assert everywhere(cluster, "pair.left is shared, type(pair).__name__, f(21), n, d") == (
        "(True, 'Pair', 42, None, {'k': (1, b'')})"
    )
    assert cluster.pull("d") == {"k": (1, b"")}
    assert cluster.pull("n") is None
    assert cluster.pull("f")(1) == 2


def test_a_hundred_megabytes_are_in_memory_once_and_leave_with_the_last_reader(four):
    big = np.random.default_rng(0).random(100_000_000 // 8)
    clients = [psutil.Process(client.pid) for client in four.state(sample=False).clients]

    def shares():
        return sum(process.memory_full_info().pss for process in clients)

    before = shares()
    four.push({"big": big})
    assert everywhere(four, "float(big.sum())") == repr(float(big.sum()))
    assert shares() - before < 150e6
    back = four.pull("big")
    assert np.array_equal(back, big)
    back[0] = -1
    assert everywhere(four, "float(big[0])") == repr(float(big[0]))
    four.run("del big")
    mapped = {place.path for process in clients for place in process.memory_maps() if "/dev/shm" in place.path}
    assert mapped == set()


def test_files_are_private_while_they_are_there(four, monkeypatch):
    seen = []
    remove = shared_memory.shutil.rmtree

    def look(folder, **options):
        seen.append(stat.S_IMODE(folder.stat().st_mode))
        seen.extend(stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir())
        remove(folder, **options)

    monkeypatch.setattr(shared_memory.shutil, "rmtree", look)
    four.push({"a": np.zeros(10000)})
    four.pull("a")
    assert set(seen) == {0o700, 0o600}


def test_a_value_is_one_where_all_have_it_and_labelled_where_they_differ(four):
    four.run(
        "same = {'b', 'a', 1.5}; own = client_id // 2; arrays = np.full(5000, float(client_id == 3)); nan = np.nan"
    )
    assert four.pull("same") == {"b", "a", 1.5}
    assert np.isnan(four.pull("nan"))
    own = four.pull("own")
    assert isinstance(own, PerClient)
    assert dict(own) == {0: 0, 1: 0, 2: 1, 3: 1}
    assert repr(own) == "PerClient: 2 values on 4 clients\n[0-1] 0\n[2-3] 1"
    arrays = four.pull("arrays")
    assert [float(arrays[client][0]) for client in arrays] == [0, 0, 0, 1]
    assert arrays[0] is arrays[2]
    assert "[0-2] array([0., 0., ..., 0., 0.], shape=(5000,))\n[3]   array" in repr(arrays).replace(
        "[3] ", "[3]   "
    )
    assert four.pull("own", on=[2, 3]) == 1
    assert pickle.loads(pickle.dumps(own)) == own


def test_alike_means_to_the_bit():
    assert alike({"a": [1.0, np.nan]}, {"a": [1.0, np.nan]})
    assert not alike(0.0, -0.0)
    assert not alike([1], [True])
    assert not alike({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not alike(np.zeros(1), np.zeros(1, "float32"))
    assert not alike(object(), object())


def test_names_that_do_not_exist_are_told_with_their_clients(four):
    four.run("if client_id in (1, 3): some = 1")
    with pytest.raises(
        TransferError, match=r"^there is no some on clients 0, 2; no nowhere, never on clients 0-3\.$"
    ):
        four.pull(["some", "nowhere", "never", "np"])
    assert four.pull("some", on=[1, 3]) == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda c: c.push({"a b": 1}), "'a b' is not a name"),
        (lambda c: c.pull([]), "no name is given"),
        (lambda c: c.push({"a": 1}, on=[9]), "client 9 is not in"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(four, call, says):
    with pytest.raises(SpecError, match=says):
        call(four)


def test_what_cannot_be_pickled_is_named_and_nothing_is_bound(four):
    with pytest.raises(
        TransferError, match=r"^lock cannot be pushed: TypeError: cannot pickle '_thread.lock' object\.$"
    ):
        four.push({"before": 1, "lock": [threading.Lock()]})
    four.run("import threading; lock = threading.Lock(); stream = (i for i in ())")
    with pytest.raises(TransferError, match=r"^lock cannot be pulled from clients 0-3: TypeError: cannot pickle"):
        four.pull(["client_id", "lock"])
    with pytest.raises(
        TransferError, match=r"^mesh cannot be pulled from clients 0-3: TypeError: a Mesh is of the"
    ):
        four.pull("mesh")
    assert everywhere(four, "'before' in globals()") == "False"


def test_a_value_that_one_client_cannot_make_is_bound_on_none(four):
    class Picky:
        def __reduce__(self):
            return eval, ("None if client_id != 2 else 1 / 0", {"client_id": 2})

    with pytest.raises(
        TransferError,
        match=r"^clients 0-3 cannot take picky: ZeroDivisionError: division by zero\. Nothing was bound\.$",
    ):
        four.push({"fine": 1, "picky": Picky()})
    assert everywhere(four, "'fine' in globals(), 'picky' in globals()") == "(False, False)"


def test_classes_and_functions_of_client_cells_come_by_value(four):
    four.run(
        "class Point:\n    def __init__(self, x):\n        self.x = x\n    def norm(self):\n        return np.sqrt(self.x ** 2)\npoint = Point(-3.0)\ndef double(x):\n    return 2 * x\n"
    )
    point = four.pull("point")
    assert not isinstance(point, PerClient)
    assert point.norm() == 3.0
    assert four.pull("double")(4) == 8


def test_no_process_of_a_cluster_keeps_a_file_open(four):
    four.push({"a": np.zeros(10000)})
    four.run("a = None")
    for process in our_processes():
        if process.status() != psutil.STATUS_ZOMBIE:
            assert not [file for file in process.open_files() if "/dev/shm" in file.path]
