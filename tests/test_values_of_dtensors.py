"""Pulls of DTensors of every layout, and how DTensors look."""

from __future__ import annotations

import numpy as np
import pytest

from dtensor_magic import Cluster
from dtensor_magic.errors import TransferError
from dtensor_magic.per_client import PerClient

#: Clients, logical CPUs per client, mesh.
MESHES = {
    "four clients": (4, 1, "a=4,b=1"),
    "two by two": (4, 1, "a=2,b=2"),
    "two devices each": (2, 2, "a=2,b=2"),
    "devices across": (2, 4, "a=4,b=2"),
    "one client": (1, 4, "a=2,b=2"),
}

#: Every layout of rank 0 to 3, as a DTensor and as a DVariable, from the same global values.
MAKE = """
import itertools, numpy as np
from tensorflow.experimental.dtensor import Layout
tensors, variables = {}, {}
for rank in range(4):
    shape = (8, 16, 8)[:rank]
    whole = np.arange(np.prod(shape, dtype=int), dtype="int32").reshape(shape)
    for specs in itertools.product(["a", "b", "unsharded"], repeat=rank):
        if specs.count("a") > 1 or specs.count("b") > 1:
            continue
        layout = Layout(list(specs), mesh)
        tensor = dtensor.relayout(dtensor.copy_to_mesh(tf.constant(whole), Layout.replicated(mesh, rank)), layout)
        name = "t_" + "_".join(specs)
        globals()[name] = tensors[name] = tensor
    # tf.Variable of int32 lives on no accelerator, float does.
    globals()[f"v_{rank}"] = variables[rank] = dtensor.DVariable(tf.cast(tensor, tf.float32))
"""


@pytest.fixture(scope="module", params=MESHES)
def meshed(request):
    clients, devices, mesh = MESHES[request.param]
    with Cluster.start("CPU", clients=clients, logical_cpus=devices, mesh=mesh, background=clients == 1) as cluster:
        cluster.run(MAKE)
        yield cluster


@pytest.fixture(scope="module")
def four():
    with Cluster.start("CPU", clients=4, mesh="x=2,y=2", name="four") as cluster:
        cluster.run("from tensorflow.experimental.dtensor import Layout; import numpy as np")
        yield cluster


def whole(rank, dtype="int32"):
    shape = (8, 16, 8)[:rank]
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


def test_a_dtensor_of_any_layout_comes_as_its_global_array(meshed):
    names = eval(next(iter(meshed.run("list(tensors)", output="none").results.values()))["text/plain"])
    assert len(names) == 1 + 3 + 7 + 13
    for name, array in meshed.pull(names).items():
        expected = whole(0 if name == "t_" else name.count("_"))
        assert type(array) is np.ndarray
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected), name


def test_a_dvariable_comes_as_its_global_array(meshed):
    for rank in range(4):
        array = meshed.pull(f"v_{rank}")
        assert np.array_equal(array, whole(rank, "float32")), rank
        array += 1


def test_dtensors_inside_other_values_come_so_too(meshed):
    found = meshed.pull("tensors")
    assert np.array_equal(found["t_a_unsharded"], whole(2))
    assert np.array_equal(found["t_b_unsharded_a"], whole(3))


def test_one_client_is_enough_to_ask(meshed):
    last = meshed.clients[-1]
    assert np.array_equal(meshed.fetch(["t_a_b"], [last])["t_a_b"].value, whole(2))


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "complex64", "float64", "uint8"])
def test_data_types_stay(four, dtype):
    four.run(
        f"t = dtensor.relayout(dtensor.copy_to_mesh(tf.cast(tf.constant([[0, 1], [2, 3]]), '{dtype}'), Layout.replicated(mesh, 2)), Layout(['x', 'y'], mesh))"
    )
    array = four.pull("t")
    assert array.dtype.name == dtype
    assert array.astype("complex64").real.tolist() == ([[0, 1], [1, 1]] if dtype == "bool" else [[0, 1], [2, 3]])


def test_an_empty_dtensor_comes(four):
    four.run("t = dtensor.copy_to_mesh(tf.zeros((0, 3)), Layout.replicated(mesh, 2))")
    assert four.pull("t").shape == (0, 3)


def test_replicas_that_differ_are_shown_as_they_are(four):
    four.run("t = dtensor.pack([tf.fill((2, 2), float(client_id == 3))], Layout.replicated(mesh, 2))")
    found = four.pull("t")
    assert isinstance(found, PerClient)
    assert [float(found[client][0, 0]) for client in range(4)] == [0, 0, 0, 1]
    four.run("t = dtensor.pack([tf.fill((1, 2), float(client_id))], Layout(['x', 'unsharded'], mesh))")
    found = four.pull("t")
    assert {client: found[client][:, 0].tolist() for client in found} == {
        0: [0, 2],
        1: [1, 2],
        2: [0, 2],
        3: [0, 3],
    }


def test_replicas_that_differ_within_a_client_are_no_value():
    with Cluster.start("CPU", clients=2, logical_cpus=2, mesh="x=4") as cluster:
        cluster.run(
            "t = dtensor.pack([tf.constant([1.0]), tf.constant([2.0])], dtensor.Layout.replicated(mesh, 1))"
        )
        with pytest.raises(
            TransferError, match=r"^t cannot be pulled from clients 0-1: .*its replicas on this client's own"
        ):
            cluster.pull("t")


def test_layouts_that_differ_between_clients_are_no_global_array(four):
    four.run(
        "t = dtensor.pack([tf.zeros((2, 2))], Layout(['x', 'unsharded'] if client_id < 3 else ['unsharded', 'y'], mesh))"
    )
    with pytest.raises(
        TransferError,
        match=r"^t is not one DTensor: clients 0-2: \(4, 2\) float32 \[x, unsharded\] on x=2, y=2; client 3: \(2, 4\) float32 \[unsharded, y\] on",
    ):
        four.pull("t")


def test_a_dtensor_of_strings_is_refused_in_one_line(four):
    four.run("t = dtensor.pack([tf.constant('a')], Layout([], mesh))")
    with pytest.raises(
        TransferError, match=r"^t cannot be pulled from clients 0-3: TypeError: a DTensor of strings[^\n]*$"
    ):
        four.pull("t")


def shown(cluster, code, capsys):
    capsys.readouterr()
    cluster.run(code)
    return capsys.readouterr().out


def test_a_sharded_dtensor_shows_its_layout_and_each_clients_shard(four, capsys):
    four.run("w = dtensor.pack([tf.fill((1, 2), 1.5 * client_id)], Layout(['x', 'y'], mesh))")
    assert shown(four, "w", capsys) == "".join(
        f"[{client}]\nDTensor (2, 4) float32 [x, y] on x=2, y=2\n  [{rows}, {columns}] = [[{value}, {value}]]\n"
        for client, rows, columns, value in [
            (0, "0:1", "0:2", "0."),
            (1, "0:1", "2:4", "1.5"),
            (2, "1:2", "0:2", "3."),
            (3, "1:2", "2:4", "4.5"),
        ]
    )


def test_a_replicated_one_that_is_alike_everywhere_is_shown_once(four, capsys):
    four.run("v = dtensor.DVariable(dtensor.copy_to_mesh(tf.range(100.), Layout.replicated(mesh, 1)))")
    assert shown(four, "v", capsys) == (
        "[0-3]\nDVariable (100,) float32 [unsharded] on x=2, y=2\n  all = [ 0.,  1., ..., 98., 99.]\n"
    )
    assert shown(four, "[v.read_value()]", capsys).startswith("[0-3]\n[DTensor (100,) float32 [unsharded]")


def test_ordinary_tensors_and_variables_look_as_ever(four, capsys):
    assert shown(four, "tf.constant([1, 2])", capsys) == (
        "[0-3] <tf.Tensor: shape=(2,), dtype=int32, numpy=array([1, 2], dtype=int32)>\n"
    )
    assert "<tf.Variable 'Variable:0' shape=() dtype=float32" in shown(four, "tf.Variable(1.0)", capsys)
    assert shown(four, "tf.zeros((2, 2))", capsys) == (
        "[0-3]\n<tf.Tensor: shape=(2, 2), dtype=float32, numpy=\n"
        "array([[0., 0.],\n       [0., 0.]], dtype=float32)>\n"
    )


def test_a_dtensor_whose_values_do_not_come_is_shown_without_them(four, capsys):
    four.run(
        "from dtensor_magic.client import formatting, parts; import time\n"
        "asked, formatting.PATIENCE = formatting.read_parts, 0.2\n"
        "formatting.read_parts = lambda *_: time.sleep(1)"
    )
    assert "  its values are not there after 0.2 s" in shown(four, "v", capsys)
    four.run("def fail(*_): raise OSError('gone')\nformatting.read_parts = fail")
    assert "  its values cannot be read: OSError: gone" in shown(four, "v", capsys)
    four.run("formatting.read_parts, formatting.PATIENCE = asked, 3.0")


def test_many_devices_of_a_client_are_shown_in_short(capsys):
    with Cluster.start("CPU", clients=2, logical_cpus=10, mesh="x=20") as cluster:
        cluster.run("w = dtensor.pack([tf.constant([float(i)]) for i in range(10)], dtensor.Layout(['x'], mesh))")
        text = shown(cluster, "w", capsys)
        assert "  [17:18] = [7.]\n  and 2 more parts on this client's other devices\n" in text
