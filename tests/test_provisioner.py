"""The provisioner: a stock kernel manager drives a forked kernel as it does any local one."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from conftest import gone, wait_for
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from notebooks import execute

from dtensor_magic.errors import AgentError
from dtensor_magic.provisioner import _module_of


@pytest.fixture(params=["dtensor_magic.client", "ipykernel_launcher"])
def manager(request, tmp_path, monkeypatch):
    """A stock `KernelManager` with a kernelspec on disk that names our provisioner."""
    folder = tmp_path / "kernels" / "forked"
    folder.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-m", request.param, "-f", "{connection_file}"],
        "display_name": "forked",
        "language": "python",
        "env": {"FROM_SPEC": "yes"},
        "metadata": {"kernel_provisioner": {"provisioner_name": "dtensor-magic"}},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    specs = KernelSpecManager(kernel_dirs=[str(tmp_path / "kernels")])
    manager = KernelManager(kernel_name="forked", kernel_spec_manager=specs)
    yield manager
    if manager.has_kernel:
        manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def test_whole_life_under_a_stock_kernel_manager(manager):
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    reply, text = execute(
        client, "import os, sys\nprint(os.getpid(), os.environ['FROM_SPEC'], 'tensorflow' in sys.modules)"
    )
    assert reply["status"] == "ok"
    pid = int(text.split()[0])
    assert text.split()[1:] == ["yes", "True"]
    assert pid == manager.provisioner.pid
    assert manager.is_alive()

    client.execute("import time; time.sleep(60)")
    wait_for(lambda: client.get_iopub_msg(timeout=5)["msg_type"] == "execute_input")
    manager.interrupt_kernel()
    assert client.get_shell_msg(timeout=10)["content"]["ename"] == "KeyboardInterrupt"

    ports = manager.get_connection_info()
    manager.restart_kernel(now=True)
    assert manager.get_connection_info() == ports
    client.wait_for_ready(timeout=60)
    assert gone([pid])
    reply, text = execute(client, "import os; print(os.getpid())")
    second = int(text)
    assert second != pid

    client.stop_channels()
    manager.shutdown_kernel()
    assert not manager.is_alive()
    assert gone([second])
    assert not Path(manager.connection_file).exists()


def test_provisioner_info_survives_a_round_trip(manager):
    manager.start_kernel()
    from jupyter_client.utils import run_sync

    info = run_sync(manager.provisioner.get_provisioner_info)()
    assert info["pid"] == manager.provisioner.pid
    other = type(manager.provisioner)(kernel_spec=manager.kernel_spec, parent=manager)
    run_sync(other.load_provisioner_info)(info)
    assert run_sync(other.poll)() is None
    assert other.has_process


def test_the_exit_code_is_known(manager):
    manager.start_kernel()
    from jupyter_client.utils import run_sync

    os.kill(manager.provisioner.pid, signal.SIGKILL)
    wait_for(lambda: not manager.is_alive())
    assert run_sync(manager.provisioner.poll)() == -signal.SIGKILL
    assert run_sync(manager.provisioner.wait)() == -signal.SIGKILL


def test_a_command_that_is_no_python_module_is_refused_in_one_line():
    with pytest.raises(AgentError, match="runs python -m MODULE, but the kernel command is: R --slave"):
        _module_of(["R", "--slave"])
