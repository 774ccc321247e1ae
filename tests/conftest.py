"""What all tests share: a private runtime folder, notebooks on real kernels, and a look for what is left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# The fixtures `lab`, `browser`, `new_page` and `notebook`.
pytest_plugins = ["lab"]

# TensorFlow's greeting is no test's subject.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# The first example of a test may import TensorFlow, and machines are shared.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

VARIABLES = ("DTENSOR_JOBS", "DTENSOR_CLIENT_ID", "DTENSOR_JOB_NAME", "DTENSOR_NUM_CLIENTS")


@pytest.fixture(scope="session", autouse=True)
def private_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep records and sockets of the tests apart from the user's."""
    base = tmp_path_factory.mktemp("home")
    changed = {
        "JUPYTER_RUNTIME_DIR": str(base / "runtime"),
        "IPYTHONDIR": str(base / "ipython"),
        "JUPYTER_CONFIG_DIR": str(base / "config"),
    }
    before = {name: os.environ.get(name) for name in (*changed, *VARIABLES)}
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(changed)
    yield base
    from dtensor_magic.cluster import registry
    from dtensor_magic.launchers.local import stop_agent

    for cluster in registry.all():
        cluster.shutdown()
    stop_agent()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def wait_for(condition: Callable[[], object], timeout: float = 10.0, what: str = "") -> None:
    """Wait until `condition` holds; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout} s: {what or condition}")
        time.sleep(0.02)


def our_processes(owner: int | None = None) -> list[psutil.Process]:
    """Return the agents, templates and clients below `owner` (this process, if not given)."""
    return psutil.Process(owner).children(recursive=True)


def gone(pids: list[int]) -> bool:
    """Whether none of `pids` runs (a zombie does not)."""
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def marked_processes(runtime: Path) -> list[psutil.Process]:
    """Return the processes that were started with `runtime` as their Jupyter runtime folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("JUPYTER_RUNTIME_DIR") == str(runtime):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the processes whose working folder is `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return found


def everywhere(cluster: Any, code: str) -> str:
    """Run `code` on all clients; return the text of its value, which is the same on all."""
    results = cluster.run(code, output="none").results
    assert set(results) == set(cluster.clients)
    found = {value["text/plain"] for value in results.values()}
    assert len(found) == 1, found
    return found.pop()


@pytest.fixture
def no_transfer_left() -> Iterator[None]:
    """Look that no push or pull of this process left anything in memory or in its agent's folder."""
    from dtensor_magic import shared_memory
    from dtensor_magic.launchers.local import local_agent

    yield
    agent = local_agent().folder
    assert list(shared_memory.PLACE.glob(f"{agent.name}*")) == []
    assert list(agent.glob(f"{agent.name}*")) == []
