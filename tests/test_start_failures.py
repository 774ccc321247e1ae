"""A start that fails says why, by the failing client's own words, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from dataclasses import replace

import psutil
import pytest
from conftest import our_processes, wait_for

from dtensor_magic import Cluster
from dtensor_magic.cluster import registry
from dtensor_magic.errors import AgentError, ClientDiedError, DTensorMagicError, SpecError, StartError
from dtensor_magic.launchers.local import current_agent, local_agent
from dtensor_magic.plan import ClusterPlan
from dtensor_magic.records import live_records


@pytest.fixture
def clean():
    """Look that a failed start leaves no client, no record and no file."""
    with Cluster.start("CPU", clients=1, background=True):
        pass
    folder = local_agent().folder
    processes = {process.pid for process in our_processes()}
    files = {path.name for path in folder.rglob("*")}
    yield
    wait_for(lambda: {process.pid for process in our_processes()} <= processes, what="processes are left")
    assert {path.name for path in folder.rglob("*")} <= files
    assert live_records() == []
    assert registry.all() == []


def test_a_client_that_cannot_initialise_ends_the_start_with_its_own_error(clean, monkeypatch):
    told = ClusterPlan.client

    def told_wrong(plan, client_id, jobs):
        spec = told(plan, client_id, jobs)
        return replace(spec, mesh=(("batch", 3),)) if client_id == 1 else spec

    monkeypatch.setattr(ClusterPlan, "client", told_wrong)
    start = time.monotonic()
    with pytest.raises(
        StartError, match="client 1 of dtensor-1 could not initialise DTensor: ValueError"
    ) as caught:
        Cluster.start("CPU", clients=2, mesh="batch=2", timeout=30)
    assert time.monotonic() - start < 20
    assert caught.value.client == 1
    assert "Traceback" in caught.value.detail


def test_a_client_that_dies_while_it_starts_is_named(clean):
    def kill_one():
        agent = local_agent()
        wait_for(lambda: [child for child in psutil.Process(agent.process.pid).children() if is_client(child)])
        victim = next(child for child in psutil.Process(agent.process.pid).children() if is_client(child))
        victim.send_signal(signal.SIGKILL)

    def is_client(process):
        try:
            return process.pid != template and os.getsid(process.pid) == process.pid
        except (psutil.NoSuchProcess, ProcessLookupError):
            return False

    from dtensor_magic.loop import driver

    template = driver().call(local_agent().request("agent.info"))["template"]
    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(StartError, match=r"client \d of .* was killed by SIGKILL"):
        Cluster.start("CPU", clients=4, timeout=30)
    killer.join()


def test_a_start_that_takes_too_long_names_those_that_are_late(clean):
    with pytest.raises(StartError, match="did not come up within 0.2 s") as caught:
        Cluster.start("CPU", clients=4, timeout=0.2)
    assert caught.value.missing


def test_an_interrupt_during_the_start_leaves_nothing(clean):
    def interrupt():
        wait_for(live_records)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Cluster.start("CPU", clients=8)
    thread.join()


def test_a_port_that_is_taken_between_check_and_use_is_named(clean, monkeypatch):
    from dtensor_magic import background

    monkeypatch.setattr(background, "check_ports_free", lambda jobs: None)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AgentError, match=f"port {port} cannot be used"):
            Cluster.start("CPU", clients=2, jobs=f"localhost:{port},localhost:15999")


def test_a_mesh_starts_over_when_a_port_is_lost_after_its_reservation(clean, monkeypatch, capsys):
    from dtensor_magic.clients import ClientGroup

    taken = []
    original = ClientGroup._reserve_ports

    async def lose_one(self):
        ports = await original(self)
        if not taken:
            # Held again by somebody else as soon as the agent lets go of it.
            await self.agent.request("ports.release", ports=ports[:1])
            taken.append(socket.create_server(("", ports[0])))
        return ports

    monkeypatch.setattr(ClientGroup, "_reserve_ports", lose_one)
    with Cluster.start("CPU", clients=2) as cluster:
        cluster.run("print(num_clients)")
    assert capsys.readouterr().out == "[0-1] 2\n"
    taken[0].close()


def test_a_template_that_cannot_import_says_so(monkeypatch, tmp_path):
    broken = tmp_path / "tensorflow"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so.12 is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    # An environment of its own, so that the warm template does not serve.
    with pytest.raises(DTensorMagicError, match=r"libcudart\.so\.12 is missing"):
        Cluster.start("CPU", clients=2, env={"TF_TEST": "broken"})
    monkeypatch.undo()
    with Cluster.start("CPU", clients=2) as cluster:
        cluster.run("1", output="none")


def test_a_dead_agent_is_replaced_and_said():
    cluster = Cluster.start("CPU", clients=2)
    agent = current_agent()
    assert agent is not None
    pids = [client.pid for client in cluster.state().clients]
    agent.process.kill()
    agent.process.wait()
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), what="clients outlive their supervisor")
    with pytest.raises(SpecError, match="host agent of .* is gone"):
        cluster.run("1")
    cluster.shutdown()
    cluster.shutdown()
    with Cluster.start("CPU", clients=2) as second:
        second.run("1", output="none")


def test_an_agent_that_dies_during_a_cell_is_the_culprit():
    cluster = Cluster.start("CPU", clients=2)
    handle = cluster.run_later("import time; time.sleep(60)")
    wait_for(lambda: cluster.state(sample=False).cell)
    agent = current_agent()
    assert agent is not None
    agent.process.kill()
    agent.process.wait()
    with pytest.raises(ClientDiedError, match="ended with its host agent, which died"):
        handle.wait(10)
    cluster.shutdown()


def test_a_dead_template_is_replaced_and_clients_live_on(capsys):
    from dtensor_magic.loop import driver

    with Cluster.start("CPU", clients=2) as cluster:
        os.kill(driver().call(local_agent().request("agent.info"))["template"], signal.SIGKILL)
        wait_for(lambda: driver().call(local_agent().request("agent.info"))["template"] is None)
        cluster.run("print('alive')")
        assert capsys.readouterr().out == "[0-1] alive\n"
        with Cluster.start("CPU", clients=2) as second:
            second.run("print('too')")
        assert capsys.readouterr().out == "[0-1] too\n"
