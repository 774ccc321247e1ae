"""The magics for values, in a real notebook kernel."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
from conftest import gone, wait_for
from notebooks import kernel, run_notebook

from dtensor_magic import shared_memory

LOAD = "%load_ext dtensor_magic"


@pytest.mark.parametrize("clients", [1, 4])
def test_values_go_to_background_clients_and_come_back(clients):
    outputs = run_notebook(
        [
            LOAD,
            f"%dtensor_init CPU -n {clients} --background --mesh x={clients}",
            "import numpy as np\na, b = np.arange(6000.).reshape(60, 100), 'text'",
            "%dtensor_push a, b",
            "%%dtensor --collect total,w\n"
            "total = float(a.sum())\n"
            "w = dtensor.pack([tf.constant([[client_id, 7]])], dtensor.Layout(['x', 'unsharded'], mesh))",
            "print(total, w.tolist())",
            "%dtensor_pull w --as other",
            "print(type(other).__name__, other.shape, 'client_id' in globals())",
            "%dtensor_pull client_id a --on 0",
            "print(client_id)",
            "%dtensor_pull client_id",
            "client_id",
        ]
    )
    ids = "client 0" if clients == 1 else "clients 0-3"
    layout = f"of shards [x, unsharded] on x={clients}"
    size = 8 * clients
    assert outputs[3].stream() == (
        f"pushed a: array (60, 100) float64, 48 kB, to {ids}\npushed b: str of 4, to {ids}\n"
    )
    assert outputs[4].stream() == (
        f"pulled total: float, from {ids}\npulled w: array ({clients}, 2) int32, {size} B, {layout}, from {ids}\n"
    )
    assert outputs[5].stream() == f"17997000.0 {[[client, 7] for client in range(clients)]}\n"
    assert outputs[6].stream() == f"pulled w as other: array ({clients}, 2) int32, {size} B, {layout}, from {ids}\n"
    assert outputs[7].stream() == f"ndarray ({clients}, 2) False\n"
    assert outputs[8].stream() == (
        "pulled client_id: int, from client 0\npulled a: array (60, 100) float64, 48 kB, from client 0\n"
    )
    assert outputs[9].stream() == "0\n"
    if clients == 4:
        assert outputs[10].stream() == (
            "pulled client_id: differs, a PerClient of 4 values by client id: int, from clients 0-3\n"
        )
        assert outputs[11].shown[0]["text/plain"] == "PerClient: 4 values on 4 clients\n[0] 0\n[1] 1\n[2] 2\n[3] 3"


def test_in_local_mode_values_are_here_already_and_a_dtensor_stays_one():
    outputs = run_notebook(
        [
            LOAD,
            "%dtensor_init CPU --logical-cpus 4 --mesh x=4",
            "%%dtensor --collect n,w\n"
            "n = 3\n"
            "w = dtensor.pack([tf.constant([float(i)]) for i in range(4)], dtensor.Layout(['x'], mesh))",
            "%dtensor_pull w",
            "dtensor.is_dtensor(w)",
            "%dtensor_pull w --as array",
            "array[0] = 9; print(array, type(array).__name__)",
            "cluster = get_ipython().run_line_magic('dtensor_init', 'CPU --logical-cpus 4 --mesh x=4')\n"
            "cluster.push({'z': 5}); print(cluster.pull(['w', 'n', 'z']), z)",
            "%dtensor_push n",
            "%dtensor_pull nothing",
        ],
        allow_errors=True,
    )
    here = "here already; the client is this notebook itself"
    stays = "its DTensor stays as it is; --as NAME gives the global array a name"
    assert outputs[2].stream() == f"n: {here}.\nw: {here}; {stays}.\n"
    assert outputs[3].stream() == f"w: {here}; {stays}.\n"
    assert outputs[4].shown[0]["text/plain"] == "True"
    assert outputs[5].stream() == (
        "pulled w as array: array (4,) float32, 16 B, of shards [x] on x=4, from client 0\n"
    )
    assert outputs[6].stream() == "[9. 1. 2. 3.] ndarray\n"
    assert outputs[7].stream() == "{'w': array([0., 1., 2., 3.], dtype=float32), 'n': 3, 'z': 5} 5\n"
    assert outputs[8].stream() == f"n: {here}.\n"
    assert "there is no nothing in this notebook, which is the client." in outputs[9].error["evalue"]


def test_mistakes_are_one_line_each():
    cases = {
        "%dtensor_pull y": "no cluster runs; start one with %dtensor_init",
        "%dtensor_init CPU -n 2": None,
        "%dtensor_push": "no name is given; write for instance w,b",
        "%dtensor_push nobody, LOAD": "there is no nobody, LOAD in this notebook",
        "%dtensor_push a-b": "'a-b' is not a name",
        "%dtensor_push x --on 7": "client 7 is not in dtensor-1",
        "%dtensor_pull x --onn 1": "unknown option --onn; did you mean --on?",
        "%dtensor_pull x,y --as z": "--as takes one name, for one value",
        "%dtensor_pull x": "there is no x on clients 0-1",
        "%%dtensor --collect a-b\n1": "'a-b' is not a name",
        "%%dtensor --collect x --no-wait\n1": "--collect needs the cell's end, which --no-wait does not wait for",
        "import sys; lock = __import__('threading').Lock()": None,
        "%dtensor_push lock": "lock cannot be pushed: TypeError: cannot pickle '_thread.lock' object.",
    }
    outputs = run_notebook([LOAD, *cases], allow_errors=True)
    for (cell, says), output in zip(cases.items(), outputs[1:], strict=True):
        if says is None:
            assert output.error is None, output
            continue
        assert output.error is not None, cell
        shown = "\n".join(output.error["traceback"])
        assert says in shown, (cell, shown)
        assert "\n" not in shown, (cell, shown)


def test_names_are_completed():
    from dtensor_magic.completion import candidates
    from dtensor_magic.value_magics import ValueMagics

    shell = SimpleNamespace(
        user_ns={"weights": 1, "words": 2, "_": 3},
        user_ns_hidden={},
        find_line_magic=lambda name: getattr(ValueMagics, name, None),
    )
    assert candidates(shell, "dtensor_push", "%dtensor_push w")[1] == ["weights", "words"]
    assert candidates(shell, "dtensor_push", "%dtensor_push a,we")[1] == ["a,weights"]
    assert "--collect" in candidates(shell, "dtensor", "%%dtensor --c")[1]
    assert "--as" in candidates(shell, "dtensor_pull", "%dtensor_pull --")[1]


def test_nothing_is_left_of_a_push_whose_notebook_was_killed():
    def folders():
        return {folder for folder in shared_memory.PLACE.glob("dtm-*") if f"-{pid}-" in folder.name}

    with kernel() as (manager, client):
        pid = manager.provisioner.pid
        slow = "class Slow:\n    def __reduce__(self):\n        return eval, (\"__import__('time').sleep(60)\",)\nslow = Slow()"
        for cell in (LOAD, "%dtensor_init CPU -n 2", slow):
            client.execute_interactive(cell, timeout=60, output_hook=lambda message: None)
        client.execute("%dtensor_push slow")
        wait_for(folders, what="the push's folder")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: gone([pid]))
        wait_for(lambda: not folders(), what="the folder to be removed")
