"""Live state: events while anybody listens, no more than two a second."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import pytest
from jupyter_server.services.events.handlers import SubscribeWebsocket  # noqa: F401 - what the tests talk to
from traitlets.config import Config

from .conftest import until

SCHEMA = "https://events.jupyter.org/dtensor_magic/changed/v1"


@pytest.fixture
def jp_server_config():
    return Config(
        {
            "ServerApp": {"jpserver_extensions": {"dtensor_magic": True}},
            "DTensorServer": {"patience": 1.0},
        }
    )


@pytest.fixture
def watcher(jp_serverapp):
    (app,) = jp_serverapp.extension_manager.extension_apps["dtensor_magic"]
    return app._watcher


async def test_events_rise_and_come_at_most_twice_a_second(ask, notebook, jp_ws_fetch):
    socket = await jp_ws_fetch("api", "events", "subscribe")
    events = []

    async def listen():
        while (message := await socket.read_message()) is not None:
            event = json.loads(message)
            if event["schema_id"] == SCHEMA:
                events.append((time.monotonic(), event))

    listening = asyncio.ensure_future(listen())
    await notebook.run("%load_ext dtensor_magic\n%dtensor_init CPU -n 2 --name live")
    # Lines that change all the time are a change each.
    await notebook.run(
        "%%dtensor\nimport time\nfor step in range(60):\n    print(step, flush=True)\n    time.sleep(0.05)"
    )
    await notebook.run("%dtensor_shutdown")

    async def ended():
        return any("live" in event["clusters"] for _, event in events[2:])

    await until(ended, "events")
    socket.close()
    await listening
    assert len(events) >= 3
    revisions = [event["revision"] for _, event in events]
    assert revisions == sorted(set(revisions))
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(events)]
    assert min(gaps) > 0.45, gaps
    _, listing = await ask("clusters")
    assert listing["revision"] >= revisions[-1]


async def test_nobody_listens_and_nothing_is_looked_at(ask, watcher, jp_ws_fetch, monkeypatch):
    looks = []
    models = watcher._clusters.models

    async def counted(**options):
        looks.append(time.monotonic())
        return await models(**options)

    monkeypatch.setattr(watcher._clusters, "models", counted)
    await asyncio.sleep(1.2)
    assert looks == []
    await ask("clusters")
    assert watcher.wanted

    async def stands_by():
        return not watcher.wanted

    await until(stands_by, "the watcher standing by")
    assert 2 <= len(looks) <= 4
    socket = await jp_ws_fetch("api", "events", "subscribe")

    async def wanted():
        return watcher.wanted

    await until(wanted, "the watcher at work")
    socket.close()
    await until(stands_by, "the watcher standing by")
