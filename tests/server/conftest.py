"""A Jupyter server with our extension, beside the clusters of the tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_jupyter.jupyter_server import *  # noqa: F403 - its fixtures and hooks, for this folder's tests alone
from traitlets.config import Config

from dtensor_magic.agent.protocol import call
from dtensor_magic.records import live_records


@pytest.fixture
def jp_runtime_dir(private_folders: Path) -> Path:
    """Let the server look where the tests' clusters are, instead of into a folder of its own."""
    return private_folders / "runtime"


@pytest.fixture
def jp_server_config() -> Config:
    return Config({"ServerApp": {"jpserver_extensions": {"dtensor_magic": True}}})


@pytest.fixture(autouse=True)
def nothing_left(jp_serverapp: Any) -> Iterator[None]:
    """Fail a test that leaves a cluster behind."""
    yield
    left = live_records()
    for record in left:
        call(record.socket, "clusters.close", name=record.name)
    assert [record.name for record in left] == []


Ask = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def ask(jp_fetch: Any) -> Ask:
    """Ask the REST interface; give the status and the JSON of the answer, whatever the status."""

    async def one(path: str, method: str = "GET", body: Any = None, **options: Any) -> tuple[int, Any]:
        if method == "POST":
            options["body"] = json.dumps(body)
        options = {"request_timeout": 90, "raise_error": False, **options}
        response = await jp_fetch("dtensor", "api", *path.split("/"), method=method, **options)
        return response.code, json.loads(response.body) if response.body else None

    return one


class Notebook:
    """A notebook on a kernel of the server, whose cells run while the test goes on."""

    def __init__(self, kernel_id: str, pid: int, client: Any) -> None:
        self.kernel_id = kernel_id
        self.pid = pid
        self._client = client
        #: What the last cell has printed so far.
        self.text: list[str] = []

    def begin(self, code: str) -> asyncio.Task[tuple[dict[str, Any], str]]:
        """Send a cell; what comes of it is awaited by the test."""
        return asyncio.ensure_future(self._execute(code))

    async def _execute(self, code: str) -> tuple[dict[str, Any], str]:
        text = self.text = []

        def hook(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                text.append(message["content"]["text"])

        reply = await self._client.execute_interactive(code, timeout=60, output_hook=hook, allow_stdin=False)
        return reply["content"], "".join(text)

    async def run(self, code: str) -> str:
        """Run a cell that ends well, and return what it printed."""
        reply, text = await self.begin(code)
        assert reply["status"] == "ok", reply
        return text


@pytest.fixture
def notebook(jp_serverapp: Any, jp_asyncio_loop: asyncio.AbstractEventLoop) -> Iterator[Notebook]:
    manager = jp_serverapp.kernel_manager

    async def start() -> Notebook:
        kernel_id = await manager.start_kernel(kernel_name="python3")
        kernel = manager.get_kernel(kernel_id)
        client = kernel.client()
        client.start_channels()
        await client.wait_for_ready(timeout=60)
        return Notebook(kernel_id, kernel.provisioner.pid, client)

    async def stop() -> None:
        started._client.stop_channels()
        await manager.shutdown_kernel(started.kernel_id, now=True)

    started = jp_asyncio_loop.run_until_complete(start())
    yield started
    jp_asyncio_loop.run_until_complete(stop())


async def until(condition: Callable[[], Awaitable[object]], what: str, timeout: float = 20.0) -> None:
    """Wait until `condition` holds, while the server goes on."""
    deadline = time.monotonic() + timeout
    while not await condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        await asyncio.sleep(0.05)
