"""What only a cluster's owner can do, asked from the server: while its notebook is busy, and where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import gone, wait_for

from dtensor_magic.agent import protocol
from dtensor_magic.agent.protocol import call
from dtensor_magic.records import find_record

from .conftest import until

INIT = "%load_ext dtensor_magic\n%dtensor_init CPU -n 2 --mesh x=2 --name "

HANG = """%%dtensor
v = dtensor.call_with_layout(tf.ones, dtensor.Layout(["x"], mesh), shape=(2,))
if client_id == 0:
    total = float(tf.reduce_sum(v))
"""


async def hang(ask, notebook, name):
    """Begin a cell of which client 0 waits in a collective that client 1 never reaches."""
    cell = notebook.begin(HANG)

    async def waits():
        _, model = await ask(f"clusters/{name}")
        return [client["phase"] for client in model["clients"]] == ["busy", "ready"]

    await until(waits, "client 0 alone at work")

    async def in_a_collective():
        _, answer = await ask(f"clusters/{name}/clients/0/stacks")
        return answer["stack"].startswith("waits in a collective")

    await until(in_a_collective, "client 0 in a collective")
    return cell


async def test_a_hanging_cell_is_interrupted_while_the_notebook_is_busy(ask, notebook):
    await notebook.run(INIT + "hung")
    await notebook.run("%dtensor mine = client_id + 40")
    cell = await hang(ask, notebook, "hung")
    code, answer = await ask("clusters/hung/stacks")
    assert code == 200
    assert "total = float(tf.reduce_sum(v))" in answer["stacks"]["0"]
    assert answer["stacks"]["1"] == "idle: no cell runs"
    code, answer = await ask("clusters/hung/restart", "POST", {"keep": "all"})
    assert code == 409
    assert answer["message"] == "hung is busy with a cell; interrupt it first."
    assert not cell.done()

    began = time.monotonic()
    code, answer = await ask("clusters/hung/interrupt", "POST")
    assert code == 200
    assert time.monotonic() - began < 5
    assert answer["outcomes"] == {"0": "was released from a collective", "1": "had finished"}
    assert answer["message"] == "client 0 was released from a collective; client 1 had finished"
    reply, text = await cell
    assert reply["status"] == "error"
    assert "dtensor_magic: the Jupyter server interrupts hung.\n" in text

    code, answer = await ask("clusters/hung/restart", "POST", {"keep": ["mine"]})
    assert code == 200, answer
    assert answer["report"]["kept"] == ["mine"]
    assert answer["cluster"]["phase"] == "ready"
    assert await notebook.run("%dtensor print(mine, float(tf.reduce_sum(dtensor.call_with_layout(tf.ones, dtensor.Layout(['x'], mesh), shape=(2,)))))") == "[0] 40 2.0\n[1] 41 2.0\n"  # fmt: skip
    await notebook.run("%dtensor_shutdown")


async def test_a_restart_can_interrupt_first_and_change_the_mesh(ask, notebook):
    await notebook.run(INIT + "reshaped")
    cell = await hang(ask, notebook, "reshaped")
    body = {"interrupt": True, "keep": "all", "clients": 1, "mesh": "y=1"}
    code, answer = await ask("clusters/reshaped/restart", "POST", body)
    assert code == 200, answer
    assert "v" in answer["report"]["kept"]
    assert answer["cluster"]["meshes"][0]["dims"] == {"y": 1}
    assert (await cell)[0]["status"] == "error"
    code, answer = await ask("clusters/reshaped/restart", "POST", {"mesh": "y=7"})
    assert code == 400
    assert "mesh" in answer["message"]
    await notebook.run("%dtensor_shutdown")


async def test_a_cluster_stays_in_the_list_while_it_restarts(ask, notebook):
    await notebook.run(INIT + "blink")
    restarting = asyncio.ensure_future(ask("clusters/blink/restart", "POST", {}))
    seen = []
    while not restarting.done():
        _, answer = await ask("clusters")
        seen.append([model["name"] for model in answer["clusters"]])
    assert (await restarting)[0] == 200
    assert all(names == ["blink"] for names in seen), seen
    await notebook.run("%dtensor_shutdown")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"keep": 3}, 'keep: it is "all", a list of names, or null.'),
        ({"keep": ["a b"]}, 'keep: it is "all", a list of names, or null.'),
        ({"clients": "2"}, "clients: '2' is not a whole number."),
        ({"force": True}, "force is no field of a restart; it has keep, clients, mesh, replay, interrupt."),
    ],
)
async def test_a_restart_that_cannot_be_is_one_line(ask, body, says):
    assert await ask("clusters/any/restart", "POST", body) == (400, {"message": says, "detail": ""})


async def test_a_stop_from_the_server_is_told_to_the_owner(ask, notebook, tmp_path):
    await notebook.run("%load_ext dtensor_magic\ncluster = %dtensor_init CPU -n 2 --name stopped")
    _, model = await ask("clusters/stopped")
    go = tmp_path / "go"
    cell = notebook.begin(f"import os\nprint('up', flush=True)\nwhile not os.path.exists({str(go)!r}): pass")

    async def up():
        return notebook.text == ["up\n"]

    await until(up, "the cell")
    assert (await ask("clusters/stopped", "DELETE"))[0] == 204
    assert (await ask("clusters/stopped"))[0] == 404

    async def told():
        return notebook.text == ["up\n", "dtensor_magic: stopped was shut down by the Jupyter server.\n"]

    await until(told, "the owner's user being told")
    go.touch()
    await cell
    reply, _ = await notebook.begin("cluster.run('1')")
    assert "stopped was shut down by the Jupyter server" in reply["evalue"]
    wait_for(lambda: gone([client["pid"] for client in model["clients"]]))


async def test_a_cluster_whose_notebook_is_gone_is_interrupted_and_restarted(ask):
    script = (
        "from dtensor_magic import Cluster\n"
        "c = Cluster.start('CPU', clients=2, lease=5, name='orphan')\n"
        "c.run('value = client_id + 7')\n"
        "c.run_later('import time; print(\"begun\", flush=True); time.sleep(600)', output='none')\n"
        "while c.state().phase.value != 'busy': pass\n"
        "import os; os._exit(0)"
    )
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=True, timeout=60)

    async def alone():
        return (await ask("clusters/orphan"))[1]["owner"]["attachable"]

    await until(alone, "a cluster without an owner")
    _, model = await ask("clusters/orphan")
    assert model["owner"]["kind"] == "none"
    assert 200 < model["owner"]["until"] - time.time() <= 300
    code, answer = await ask("clusters/orphan/clients/1/stacks")
    assert code == 200
    assert "time.sleep(600)" in answer["stack"]
    code, answer = await ask("clusters/orphan/interrupt", "POST")
    assert (code, answer["message"]) == (200, "clients 0-1 were interrupted")

    async def idle():
        return (await ask("clusters/orphan"))[1]["phase"] == "ready"

    await until(idle, "idle clients")
    code, answer = await ask("clusters/orphan/restart", "POST", {"keep": ["value"]})
    assert code == 200, answer
    assert answer["report"]["kept"] == ["value"]
    assert answer["cluster"]["owner"]["attachable"]
    assert 200 < answer["cluster"]["owner"]["until"] - time.time() <= 300
    assert (await ask("clusters/orphan", "DELETE"))[0] == 204


async def test_an_owner_that_does_not_answer_is_told_of(ask, notebook, monkeypatch):
    from dtensor_magic.server import clusters

    monkeypatch.setitem(clusters.OWNER_TIMEOUTS, "interrupt", 0.5)
    await notebook.run(INIT + "frozen")
    os.kill(notebook.pid, signal.SIGSTOP)
    try:
        code, answer = await ask("clusters/frozen/interrupt", "POST")
        assert (code, answer["message"]) == (504, "the notebook of frozen did not answer within 0.5 s.")
        assert (await ask("clusters/frozen"))[1]["phase"] == "ready"
    finally:
        os.kill(notebook.pid, signal.SIGCONT)
    await notebook.run("%dtensor_shutdown")


async def test_an_agent_that_dies_while_it_is_asked_is_told_of(ask, notebook, monkeypatch):
    from dtensor_magic.server import clusters

    await notebook.run(INIT + "dying")
    agent = psutil.Process(find_record("dying").agent.pid)
    agent.suspend()
    try:
        monkeypatch.setattr(clusters, "AGENT_TIMEOUT", 0.5)
        code, answer = await ask("clusters/dying")
        assert (code, answer["message"]) == (504, "the host agent of dying did not answer within 0.5 s.")
        _, listing = await ask("clusters")
        assert [model["last_error"] for model in listing["clusters"]] == [answer["message"]]

        connected = asyncio.Event()

        @contextlib.asynccontextmanager
        async def visit(path):
            async with protocol.visit(path) as peer:
                connected.set()
                yield peer

        monkeypatch.setattr(clusters, "AGENT_TIMEOUT", 30.0)
        monkeypatch.setattr(clusters, "visit", visit)
        asked = asyncio.ensure_future(ask("clusters/dying"))
        await connected.wait()
    finally:
        agent.kill()
    assert await asked == (404, {"message": "dying ended while it was asked.", "detail": ""})
    assert (await ask("clusters"))[1]["clusters"] == []
    reply, _ = await notebook.begin("%dtensor 1")
    assert "the host agent of dying is gone" in reply["evalue"]


async def test_the_agent_answers_nobody_for_an_owner_that_has_let_go(ask, notebook):
    await notebook.run(INIT + "let-go --lease 5")
    record = find_record("let-go")
    await notebook.run("%dtensor_detach")
    owner = await asyncio.to_thread(call, record.socket, "clusters.owner", name="let-go")
    assert (owner["owned"], owner["pid"]) == (False, None)
    code, answer = await ask("clusters/let-go/clients/0/stacks")
    assert (code, answer) == (200, {"client": 0, "stack": "idle: no cell runs"})
    assert (await ask("clusters/let-go", "DELETE"))[0] == 204
