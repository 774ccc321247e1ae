"""What the clients tell of themselves while they work: where they stand, what they said, what their names hold."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from conftest import wait_for

from dtensor_magic import Cluster
from dtensor_magic.agent.status import StatusReader, StatusWriter
from dtensor_magic.errors import ClusterStateError, SpecError
from dtensor_magic.state import CellSpan, MeshState, Phase, hung_clients
from dtensor_magic.variables import VariableState, gather, over_clients, same_parts, signature

SETUP = """
import time, numpy as np
x = dtensor.pack([tf.constant([[1., 2.], [3., 4.]]) * (client_id + 1)] * 2, dtensor.Layout(["a", "unsharded"], mesh))
v = dtensor.DVariable(dtensor.call_with_layout(tf.zeros, dtensor.Layout(["a", "b"], mesh), shape=(4, 4)), name="v")
own = np.arange(3.0) * client_id
same = np.arange(3.0)
nest = {"w": v, "l": [x, 3], "no": "tensor"}
class Net(tf.Module):
    def __init__(self):
        self.kernel = v
        self.layers = [tf.Variable([1.0, 2.0])]
net = Net()
text = "hello"
layout = dtensor.Layout(["a", "unsharded"], mesh)
other = dtensor.create_distributed_mesh([("q", 4)], device_type="CPU")
class Bad:
    def __repr__(self):
        raise ValueError("no")
bad = Bad()
class Worse:
    @property
    def value(self):
        raise RuntimeError("no value")
worse = Worse()
word = tf.constant("word")
if client_id == 1:
    only_here = 1
"""


@pytest.fixture(scope="module")
def two():
    """Two clients with two devices each, and names of all kinds."""
    with Cluster.start("CPU", clients=2, logical_cpus=2, mesh="a=2,b=2", name="looked-at") as cluster:
        cluster.run(SETUP)
        yield cluster


def client(cluster, number=0):
    return cluster.state(sample=False).clients[number]


def test_the_last_line_of_output_is_known_whoever_wrote_it(two):
    two.run("print('one'); print('two', client_id, end=' ')")
    assert [one.said for one in two.state(sample=False).clients] == ["two 0", "two 1"]
    two.run("import os; os.write(2, b'native words\\n')")
    assert client(two).said == "native words"
    two.run("print('10%', end='\\r'); print('20%', end='')")
    assert client(two).said == "20%"
    with pytest.raises(Exception, match="broken"):
        two.run("raise ValueError('broken\\nin two')")
    assert client(two).said == "ValueError: broken"


def test_a_cell_that_runs_shows_its_line_and_its_words(two):
    handle = two.run_later("print('before')\n\ntime.sleep(60)")
    wait_for(lambda: client(two).line == 3)
    assert client(two).said == "before"
    assert client(two).phase is Phase.BUSY
    assert client(two).cells[-1].outcome == "running"
    handle.cancel()
    last = client(two).cells[-1]
    assert (last.outcome, last.text) == ("interrupted", "print('before')")


def test_the_last_cells_are_remembered_with_their_ends(two):
    two.run("'# first'")
    with pytest.raises(Exception, match="division"):
        two.run("1/0", on=[1])
    assert client(two, 0).cells[-1].outcome == "done"
    assert [cell.outcome for cell in client(two, 1).cells[-2:]] == ["done", "failed"]
    assert all(cell.end >= cell.start for cell in client(two, 1).cells)
    for number in range(20):
        two.run(f"{number}", output="none")
    assert [cell.text for cell in client(two).cells] == [str(number) for number in range(8, 20)]


def test_waiting_in_a_collective_is_told_from_computing_and_the_hung_from_both():
    with Cluster.start("CPU", clients=3, mesh="a=3") as cluster:
        cluster.run("import time; x = dtensor.pack([tf.ones([1])], dtensor.Layout(['a'], mesh))")
        cell = "if client_id == 2: time.sleep(4)\nfloat(tf.reduce_sum(x))"
        handle = cluster.run_later(cell)
        phases = lambda: [one.phase for one in cluster.state(sample=False).clients]  # noqa: E731
        wait_for(lambda: phases() == [Phase.WAITING, Phase.WAITING, Phase.BUSY])
        assert hung_clients(cluster.state(), time.time() + 60) == []
        handle.wait()
        spans = [one.cells[-1] for one in cluster.state(sample=False).clients]
        assert [len(span.waits) for span in spans] == [1, 1, 0]
        begin, end = spans[0].waits[0]
        assert 2 < end - begin <= spans[0].end - spans[0].start
        handle = cluster.run_later("if client_id != 1: float(tf.reduce_sum(x))")
        wait_for(lambda: phases() == [Phase.WAITING, Phase.READY, Phase.WAITING])
        wait_for(lambda: hung_clients(cluster.state(), time.time()) == [0, 2])
        text = cluster._repr_mimebundle_()["text/plain"]
        assert "⚠ hung" in text
        assert "⚠ clients 0, 2 wait in a collective, and client 1 is idle" in text
        # What names hold is told all the same.
        assert signature(gather(cluster.describe(["x"]))[0]) == "float32 (3) [a] on a=3"
        handle.cancel()


def test_a_client_that_dies_in_a_cell_leaves_that_cell_as_its_last():
    with Cluster.start("CPU", clients=2) as cluster:
        handle = cluster.run_later("import time; time.sleep(60)")
        wait_for(lambda: client(cluster, 1).phase is Phase.BUSY)
        os.kill(client(cluster, 1).pid, signal.SIGKILL)
        wait_for(lambda: client(cluster, 1).phase is Phase.DEAD)
        assert client(cluster, 1).cells[-1].outcome == "died"
        handle.cancel()


def test_meshes_made_in_a_cell_are_in_the_state(two):
    assert [(mesh.name, mesh.dims) for mesh in two.state().meshes] == [
        ("mesh", {"a": 2, "b": 2}),
        ("other", {"q": 4}),
    ]


def test_names_are_described_and_their_differences_told(two):
    found = {name.name: name for name in over_clients(two.describe())}
    kinds = {name: (one.first.kind, one.first.type) for name, one in found.items()}
    assert kinds == {
        "x": ("dtensor", "EagerTensor"),
        "v": ("dtensor", "DVariable"),
        "own": ("array", "ndarray"),
        "same": ("array", "ndarray"),
        "nest": ("group", "dict"),
        "net": ("group", "Net"),
        "text": ("value", "str"),
        "layout": ("layout", "Layout"),
        "other": ("mesh", "Mesh"),
        "bad": ("value", "Bad"),
        "worse": ("value", "Worse"),
        "word": ("tensor", "EagerTensor"),
        "only_here": ("value", "int"),
    }
    differences = {name: one.difference for name, one in found.items() if one.difference}
    assert differences == {"own": "a value per client", "only_here": "not on client 0"}
    assert (found["x"].first.shape, found["x"].first.nbytes) == ([4, 2], 32)
    assert [part.name for part in found["nest"].first.parts] == ["['w']", "['l'][0]"]
    assert [part.name for part in found["net"].first.parts] == [".kernel", ".layers.0"]
    assert found["worse"].first.text == "cannot be looked into: RuntimeError: no value"
    assert found["bad"].first.text == "<Bad, whose repr raises ValueError>"


def test_parts_are_those_that_the_devices_hold(two):
    (x,) = gather(two.describe(["x"]))
    assert same_parts(x) == {((0, 2), (0, 2)): [0, 1], ((2, 4), (0, 2)): [2, 3]}
    (v,) = gather(two.describe(["net.kernel"]))
    assert same_parts(v) == {
        ((0, 2), (0, 2)): [0],
        ((0, 2), (2, 4)): [1],
        ((2, 4), (0, 2)): [2],
        ((2, 4), (2, 4)): [3],
    }


def test_values_come_from_whoever_holds_them(two):
    (x,) = gather(two.describe(["x"], values=True))
    whole = np.zeros((4, 2))
    for heat in x.heat:
        (a, b), (c, d) = heat.ranges
        whole[a:b, c:d] = heat.grid
    assert whole.tolist() == [[1, 2], [3, 4], [2, 4], [6, 8]]
    assert (min(heat.low for heat in x.heat), max(heat.high for heat in x.heat)) == (1.0, 8.0)
    own = gather(two.describe(["own"], values=True))
    assert [(one.client, one.heat[0].high) for one in own] == [(0, 0.0), (1, 2.0)]


def test_large_values_are_averaged_and_odd_ones_do_no_harm(two):
    two.run(
        "big = np.ones((1000, 30, 500), 'float32'); odd = np.array([np.nan, np.inf, 1.0]); none = np.zeros((0, 3))"
    )
    big, odd, none = gather(two.describe(["big", "odd", "none"], values=True))
    assert (len(big.heat[0].grid), len(big.heat[0].grid[0])) == (24, 24)
    assert odd.heat[0].grid == [[None, None, 1.0]]
    assert (odd.heat[0].low, odd.heat[0].high) == (1.0, 1.0)
    assert none.heat == []
    two.run("del big, odd, none")


def test_a_name_that_nobody_has_and_values_of_a_busy_cluster_are_refused(two):
    with pytest.raises(SpecError, match="no client of looked-at has 'missing'; %dtensor_variables"):
        two.describe(["missing"])
    handle = two.run_later("time.sleep(60)")
    wait_for(lambda: all(one.phase is Phase.BUSY for one in two.state(sample=False).clients))
    with pytest.raises(ClusterStateError, match="busy with a cell"):
        two.describe(["x"], values=True)
    handle.cancel()


def test_a_single_client_is_described_alike():
    with Cluster.start("CPU", clients=1, background=True, mesh="a=1") as cluster:
        cluster.run("w = dtensor.call_with_layout(tf.ones, dtensor.Layout(['a'], mesh), shape=(2,))")
        assert signature(gather(cluster.describe(["w"]))[0]) == "float32 (2) [a] on a=1"


def test_odd_large_and_cyclic_values_hide_no_others_and_cost_little(two):
    two.run(
        "import keras\nfrom unittest.mock import MagicMock\nodd_shape = tf.Variable(1.0, shape=tf.TensorShape(None))\n"
        "mock = MagicMock()\nglobals()[3] = 4\nclass B:\n    def __repr__(self): return '\\ud800'\nb = B()\n"
        "data = [[float(i) for i in range(1000)] for _ in range(300)]; million = {i: i for i in range(1_000_000)}\n"
        "a = []; a.extend([a] * 6)\nmodel = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])\n"
        "kv = keras.Variable(np.ones((2, 3), 'float32'))"
    )
    found = {name.name: name.first for name in over_clients(two.describe())}
    assert {"odd_shape", "mock", "b", "data", "million", "a", "x", "v"} <= set(found)
    assert [(signature(part)) for part in found["model"].parts] == ["float32 (3, 4)", "float32 (4)"]
    assert signature(found["kv"]) == "float32 (2, 3)"
    assert found["million"].text == "dict of 1000000"
    two.run("del odd_shape, mock, b, data, million, a, model, kv, globals()[3]")


def test_an_error_of_a_million_letters_ends_its_cell(two):
    with pytest.raises(Exception, match="z{100}"):
        two.run("raise ValueError('z' * 1_000_000)", timeout=30)
    assert client(two).said.startswith("ValueError: zzz")


def test_twenty_thousand_waits_are_told_in_some_and_leave_a_page_that_can_be_read(tmp_path):
    page = StatusWriter(str(tmp_path / "page"))
    span = CellSpan("In[1]", "x", 0.0)
    for number in range(20_000):
        span.waits.append((number + 0.1, number + 0.9))
        span.condense(200)
    assert len(span.waits) == 200
    assert (span.waits[0][0], span.waits[-1][1]) == (0.1, 19_999.9)
    page.update(Phase.BUSY, waits=[(float(number), number + 0.5) for number in range(40_000)], said="words")
    found = StatusReader(str(tmp_path / "page")).read()
    assert (found["phase"], found["waits"], found["said"]) == ("busy", [], "words")


def test_a_name_that_some_lack_and_others_hold_differently_is_drawn_for_each():
    def one(shape):
        return VariableState(
            "w",
            "dtensor",
            "EagerTensor",
            shape=shape,
            dtype="float32",
            specs=["a"],
            mesh=MeshState("m", {"a": 2}, "CPU"),
        )

    described = {0: [one([2])], 1: [one([4])], 2: []}
    (name,) = over_clients(described)
    assert name.difference == "not on client 2; shape differs: client 0 [2]; client 1 [4]"
    assert [(found.client, found.shape) for found in gather(described)] == [(0, [2]), (1, [4])]
