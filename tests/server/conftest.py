"""A Jupyter server with our extension, beside the clusters of the tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from notebooks import execute, kernel
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
    """A notebook kernel whose cells run while the test, and with it the server, goes on."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self._client = client

    def begin(self, code: str, timeout: float = 60.0) -> asyncio.Future[tuple[dict[str, Any], str]]:
        """Send a cell; what comes of it is awaited by the test."""
        # Not asyncio.to_thread: the test's context would bring its running loop along.
        return asyncio.get_running_loop().run_in_executor(None, execute, self._client, code, timeout)

    async def run(self, code: str) -> str:
        """Run a cell that ends well, and return what it printed."""
        reply, text = await self.begin(code)
        assert reply["status"] == "ok", reply
        return text


@pytest.fixture
def notebook(jp_serverapp: Any) -> Iterator[Notebook]:
    with kernel() as (manager, client):
        yield Notebook(manager, client)


async def until(condition: Callable[[], Awaitable[object]], what: str, timeout: float = 20.0) -> None:
    """Wait until `condition` holds, while the server goes on."""
    deadline = time.monotonic() + timeout
    while not await condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        await asyncio.sleep(0.05)
