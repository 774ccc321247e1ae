"""A ModelArts job on two hosts, each a network namespace with its own address, by the seed's start command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import processes_in, wait_for

EXAMPLES = Path(__file__).parents[1] / "examples"
PARENT = str(Path(__file__).parents[1])

#: As the page writes it; "python" is the launcher.
COMMAND = (
    "{launch} --task_index ${{VC_TASK_INDEX}} --PS_hosts ${{TF_PS_HOSTS}} --worker_hosts ${{TF_WORKER_HOSTS}} "
    "--job_name ${{MA_TASK_NAME}} {script} {arguments}"
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


class Hosts:
    """Two namespaces, joined by a pair of network devices."""

    def __init__(self) -> None:
        self.names = [f"dtm{os.getpid()}-{number}" for number in range(2)]
        self.addresses = ["10.83.7.1", "10.83.7.2"]
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "veth0", "netns", self.names[0], "type", "veth", "peer", "veth0", "netns", self.names[1])
        for name, address in zip(self.names, self.addresses, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "veth0", "up")

    def cut(self) -> None:
        """Take the link away, so that nobody hears anything any more."""
        ip("-n", self.names[1], "link", "set", "veth0", "down")

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = None
    try:
        if shutil.which("ip") is None or not sys.platform.startswith("linux"):
            pytest.skip("NOT TESTED ON SEVERAL HOSTS: iproute2 is not installed")
        try:
            made = Hosts()
        except subprocess.CalledProcessError as error:
            pytest.skip(
                f"NOT TESTED ON SEVERAL HOSTS: network namespaces are not permitted ({error.stderr.decode()})"
            )
        yield made
    finally:
        if made is not None:
            made.close()


class Container:
    """A task's container: its variables, its host, its start command."""

    def __init__(self, hosts: Hosts, host: int, task: str, script: str, arguments: str, folder: Path) -> None:
        self.log = folder / f"{task}-{host}.log"
        launch = f"{sys.executable} -m dtensor_magic.cli launch"
        variables = {
            "VC_TASK_INDEX": str(host),
            "TF_PS_HOSTS": f"[{','.join(f'{address}:6001' for address in hosts.addresses)}]",
            "TF_WORKER_HOSTS": f"[{','.join(f'{address}:5001' for address in hosts.addresses)}]",
            "MA_TASK_NAME": task,
            "MA_NUM_HOSTS": "2",
            "MA_CURRENT_IP": hosts.addresses[host],
            "MA_NUM_GPUS": "0",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", hosts.names[host], "sh", "-c"),
                    "exec " + COMMAND.format(launch=launch, script=script, arguments=arguments),
                ],
                env={**os.environ, "PYTHONPATH": PARENT, **variables},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self, timeout: float = 90) -> int:
        return self.process.wait(timeout)

    @property
    def said(self) -> str:
        return self.log.read_text()


@pytest.fixture
def job(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., dict[tuple[str, int], Container]]]:
    """Return a function that starts a job: a worker and a parameter server on each host."""
    started: list[Container] = []

    def start(script: str, arguments: str = "") -> dict[tuple[str, int], Container]:
        tasks = [(task, host) for task in ("ps", "worker") for host in range(2)]
        containers = {
            (task, host): Container(hosts, host, task, script, arguments, tmp_path) for task, host in tasks
        }
        started.extend(containers.values())
        return containers

    yield start
    for container in started:
        if container.process.poll() is None:
            container.process.kill()
        container.process.wait()
    wait_for(lambda: not processes_in(tmp_path), 10, f"left: {processes_in(tmp_path)}")


@pytest.mark.long
def test_a_modelarts_job_on_two_hosts_trains_with_dtensor(job):
    parts = job(str(EXAMPLES / "launch_dtensor.py"), "--epochs 3")
    assert {name: part.wait() for name, part in parts.items()} == dict.fromkeys(parts, 0)
    assert "client 1 of 2, 10.83.7.1:5001,10.83.7.2:5001, with 2 parameter servers" in parts["worker", 1].said
    assert "[0] epoch 3  loss 0.0276\n" in parts["worker", 0].said
    assert "parameter server 1 of 2, on 10.83.7.2." in parts["ps", 1].said


@pytest.mark.long
def test_a_modelarts_job_on_two_hosts_trains_with_parameter_servers(job):
    parts = job(str(EXAMPLES / "launch_parameter_server.py"), "--epochs 3")
    assert {name: part.wait() for name, part in parts.items()} == dict.fromkeys(parts, 0)
    assert "[chief] coordinator of 2 workers and 2 parameter servers\n" in parts["worker", 0].said
    assert "[chief] epoch 3  loss 0.00" in parts["worker", 0].said


@pytest.mark.long
def test_a_worker_that_fails_ends_the_job_on_both_hosts_with_its_code(job, tmp_path):
    (tmp_path / "fails.py").write_text(
        "import os, signal, sys\nif os.environ['DTENSOR_CLIENT_ID'] == '1':\n    sys.exit(11)\nsignal.pause()\n"
    )
    parts = job("fails.py")
    assert {name: part.wait(60) for name, part in parts.items()} == dict.fromkeys(parts, 11)
    assert "client 1 exited with code 11; ending this part." in parts["ps", 0].said


@pytest.mark.long
def test_a_host_that_cannot_be_reached_any_more_is_named_and_the_job_ends_on_both(job, hosts, tmp_path):
    (tmp_path / "stays.py").write_text("import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    parts = job("stays.py")
    for host in range(2):
        wait_for(lambda host=host: "ready" in parts["worker", host].said, 60)
    hosts.cut()
    assert {name: part.wait(60) for name, part in parts.items()} == dict.fromkeys(parts, 1)
    assert "1 is gone: its launcher or its host ended" in parts["worker", 0].said
    assert "the first client's launcher is gone" in parts["worker", 1].said


@pytest.mark.long
def test_an_interrupt_on_one_host_ends_the_job_on_both(job, tmp_path):
    (tmp_path / "stays.py").write_text("import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    parts = job("stays.py")
    for host in range(2):
        wait_for(lambda host=host: "ready" in parts["worker", host].said, 60)
    parts["worker", 1].process.send_signal(signal.SIGINT)
    assert {name: part.wait(30) for name, part in parts.items()} == dict.fromkeys(parts, 130)
