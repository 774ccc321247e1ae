"""Who may ask what, and what is answered about clusters that are there, and those that are not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_for
from jupyter_server.auth import Authorizer
from traitlets.config import Config

from dtensor_magic.records import find_record
from dtensor_magic.state import ClusterState

from .conftest import until

ROUTES = [
    ("GET", "clusters"),
    ("POST", "clusters"),
    ("POST", "check"),
    ("GET", "defaults"),
    ("GET", "clusters/any"),
    ("DELETE", "clusters/any"),
    ("POST", "clusters/any/interrupt"),
    ("POST", "clusters/any/restart"),
    ("GET", "clusters/any/stacks"),
    ("GET", "clusters/any/clients/0/stacks"),
    ("GET", "clusters/any/clients/0/logs"),
]


def own_process(name: str, **environ: str) -> subprocess.Popen[str]:
    """Start a cluster in a script that runs until its input closes."""
    script = (
        "from dtensor_magic import Cluster\n"
        f"with Cluster.start('CPU', clients=2, mesh='x=2', name={name!r}): print('up', flush=True); input()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


@pytest.fixture
def script(jp_serverapp):
    """A cluster of a script."""
    process = own_process("scripted")
    assert process.stdout.readline() == "up\n"
    yield process
    process.communicate("\n", timeout=30)


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("authorization", ["", "token wrong"])
async def test_without_the_right_token_every_route_is_forbidden(ask, method, path, authorization):
    code, _ = await ask(path, method, {}, headers={"Authorization": authorization})
    assert code == 403


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[0] != "GET"])
async def test_with_a_cookie_alone_writing_needs_the_xsrf_token(ask, jp_fetch, jp_serverapp, method, path):
    token = jp_serverapp.identity_provider.token
    page = await jp_fetch("api", "spec.yaml", params={"token": token}, headers={"Authorization": ""})
    cookies = [cookie.partition(";")[0] for cookie in page.headers.get_list("Set-Cookie")]
    xsrf = "_xsrf=2|1234|5678|90"
    signed_in = {
        "Authorization": "",
        "Cookie": "; ".join([*(c for c in cookies if not c.startswith("_xsrf")), xsrf]),
    }
    code, answer = await ask(path, method, {}, headers=dict(signed_in))
    assert code == 403
    assert "_xsrf" in answer["message"]
    code, _ = await ask("defaults", headers={**signed_in, "Referer": f"http://127.0.0.1:{jp_serverapp.port}/"})
    assert code == 200


class ReadOnly(Authorizer):
    """Lets everybody read, but of clusters only."""

    def is_authorized(self, handler, user, action, resource):
        return action == "read" and resource == "dtensor"


class TestAuthorizer:
    @pytest.fixture
    def jp_server_config(self):
        return Config({"ServerApp": {"jpserver_extensions": {"dtensor_magic": True}, "authorizer_class": ReadOnly}})

    @pytest.mark.parametrize(("method", "path"), ROUTES)
    async def test_every_route_asks_the_authorizer(self, ask, method, path):
        code, _ = await ask(path, method, {})
        if method == "GET":
            assert code in (200, 404)
        else:
            assert code == 403


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[1].startswith("clusters/")])
async def test_a_cluster_that_is_not_there_is_said_to_be_none(ask, method, path):
    assert await ask(path, method, {}) == (404, {"message": "no cluster any runs; there is none.", "detail": ""})


@pytest.mark.parametrize("name", ["..%2F..%2Fetc", "%00", "a%20b", "x" * 200])
async def test_a_name_that_is_none_finds_nothing(jp_fetch, name):
    response = await jp_fetch("dtensor", "api", "clusters", name, raise_error=False)
    assert response.code in (400, 404)


async def test_a_scripts_cluster_is_found_with_all_that_a_view_shows(ask, script):
    code, listing = await ask("clusters")
    assert code == 200
    (model,) = listing["clusters"]
    assert model["owner"] == {
        "kind": "process",
        "pid": script.pid,
        "kernel_id": None,
        "attachable": False,
        "until": None,
    }
    code, alone = await ask("clusters/scripted")
    assert code == 200
    ours = {"owner", "attach", "python", "host"}
    state = ClusterState.from_json({key: value for key, value in alone.items() if key not in ours})
    assert state.phase == "ready"
    assert [mesh.dims for mesh in state.meshes] == [{"x": 2}]
    assert all(client.pss for client in state.clients)


async def test_no_model_tells_a_secret(ask, script):
    folder = os.path.dirname(find_record("scripted").socket)
    key = json.loads((Path(folder) / "0" / "c0.json").read_text())["key"]
    for path in ("clusters", "clusters/scripted", "defaults"):
        text = json.dumps((await ask(path))[1])
        for secret in (key, folder, "environ", "JUPYTER_RUNTIME_DIR", os.environ["HOME"]):
            assert secret not in text, path


async def test_logs_are_given_by_the_end_or_whole(ask, script):
    record = find_record("scripted")
    log = Path(record.socket).parent / "0" / "c1.log"
    log.write_text("x" * 5000 + "the end\n")
    whole = (await ask("clusters/scripted/clients/1/logs", params={"size": -1}))[1]["text"]
    assert len(whole) >= 5008
    code, answer = await ask("clusters/scripted/clients/1/logs")
    assert (code, answer) == (200, {"client": 1, "text": whole[-4000:]})
    assert (await ask("clusters/scripted/clients/1/logs", params={"size": 8}))[1]["text"] == "the end\n"
    code, answer = await ask("clusters/scripted/clients/1/logs", params={"size": "all"})
    assert (code, answer["message"]) == (400, "size: 'all' is not a number of bytes, nor -1 for the whole log.")
    for what in ("logs", "stacks"):
        code, answer = await ask(f"clusters/scripted/clients/9/{what}")
        assert (code, answer["message"]) == (404, "client 9 is not in scripted; it has 0-1.")


async def test_reading_counts_as_no_activity_and_writing_does(ask, jp_serverapp):
    settings = jp_serverapp.web_app.settings
    settings.pop("api_last_activity", None)
    for path in ("clusters", "defaults", "clusters/any"):
        await ask(path)
    assert "api_last_activity" not in settings
    await ask("check", "POST", {})
    assert "api_last_activity" in settings


async def test_another_users_clusters_are_not_seen(ask, script, tmp_path):
    other = own_process("foreign", JUPYTER_RUNTIME_DIR=str(tmp_path / "another"))
    assert await asyncio.to_thread(other.stdout.readline) == "up\n"
    assert [model["name"] for model in (await ask("clusters"))[1]["clusters"]] == ["scripted"]
    assert (await ask("clusters/foreign"))[0] == 404
    assert (await ask("clusters/foreign", "DELETE"))[0] == 404
    await asyncio.to_thread(other.communicate, "\n", 30)


async def test_a_cluster_that_ends_meanwhile_is_gone_from_the_list(ask, script):
    process = script
    process.stdin.write("\n")
    process.stdin.flush()

    async def none():
        code, listing = await ask("clusters")
        assert code == 200
        return listing["clusters"] == []

    await until(none, "no cluster")
    wait_for(lambda: process.poll() is not None)
