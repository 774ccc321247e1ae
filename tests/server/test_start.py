"""Starting clusters from the server, and taking them up in notebooks."""

from __future__ import annotations

import asyncio
import json
import sys
import venv
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import wait_for

from dtensor_magic.records import find_record
from dtensor_magic.server.specs import magic_line
from dtensor_magic.spec import ClusterSpec

from .conftest import until


async def test_a_cluster_that_was_started_here_can_be_taken_up_in_a_notebook(ask, jp_root_dir, notebook):
    (jp_root_dir / "work").mkdir()
    code, model = await ask(
        "clusters",
        "POST",
        {
            "device_type": "cpu",
            "clients": 2,
            "mesh": "x=2",
            "name": "from-lab",
            "path": "work",
            "env": {"MINE": "1"},
        },
    )
    assert code == 201, model
    assert (model["name"], model["phase"], model["device_type"]) == ("from-lab", "ready", "CPU")
    assert [client["phase"] for client in model["clients"]] == ["ready", "ready"]
    assert model["owner"]["kind"] == "none"
    assert model["owner"]["attachable"]
    assert model["attach"] == "%dtensor_attach from-lab"
    assert model["python"] == sys.executable
    _, listing = await ask("clusters")
    assert [one["name"] for one in listing["clusters"]] == ["from-lab"]

    await notebook.run(f"%load_ext dtensor_magic\n{model['attach']}")
    text = await notebook.run("%dtensor import os; print(os.path.basename(os.getcwd()), os.environ['MINE'])")
    assert text == "[0-1] work 1\n"
    code, model = await ask("clusters/from-lab")
    assert model["owner"] == {
        "kind": "notebook",
        "pid": notebook.pid,
        "kernel_id": notebook.kernel_id,
        "attachable": False,
        "until": None,
    }
    await notebook.run("%dtensor_shutdown")
    assert find_record("from-lab") is None


async def test_one_client_is_a_background_client(ask):
    code, model = await ask("clusters", "POST", {"device_type": "CPU", "lease": 5})
    assert code == 201, model
    assert (model["name"], model["mode"], len(model["clients"])) == ("dtensor-1", "local", 1)
    assert (await ask("clusters/dtensor-1", "DELETE"))[0] == 204
    wait_for(lambda: find_record("dtensor-1") is None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"clients": "four"}, "clients: 'four' is not a whole number."),
        ({"clients": True}, "clients: True is not a whole number."),
        ({"clientz": 4}, "clientz is no field of a cluster; did you mean clients?"),
        ({"clients": 0}, "clients: 0 is not a client count"),
        ({"clients": 2, "mesh": "x=3"}, "mesh"),
        ({"clients": 2, "env": {"A": 1}}, "is not an object of texts"),
        ({"here": True}, "%dtensor_init --here makes a notebook one"),
        ({"clients": 2, "start_method": "exec"}, "--lease needs --start-method fork"),
        ({"clients": 2, "kernelspec": "nobody"}, "kernelspec: there is no nobody"),
        ({"clients": 2, "kernelspec": "echo"}, "kernelspec: echo does not start ipykernel"),
    ],
)
async def test_what_cannot_be_is_one_line_before_anything_starts(ask, body, says):
    code, answer = await ask("clusters", "POST", body)
    assert code == 400
    assert says in answer["message"]
    assert "\n" not in answer["message"]
    code, answer = await ask("check", "POST", body)
    assert code == 200
    assert answer["ok"] is False
    assert says in answer["message"]


@pytest.mark.parametrize("body", ["[1]", "{", '"text"'])
@pytest.mark.parametrize("path", ["clusters", "check"])
async def test_a_body_that_is_no_object_is_refused(jp_fetch, path, body):
    response = await jp_fetch("dtensor", "api", path, method="POST", body=body, raise_error=False)
    assert response.code == 400
    assert json.loads(response.body)["message"]


async def test_a_check_gives_the_plan_and_the_magic_line(ask):
    body = {"device_type": "cpu", "clients": 2, "mesh": "a=2,b=-1", "logical_cpus": 2, "env": {"A": "x y"}}
    code, answer = await ask("check", "POST", body)
    assert code == 200
    assert answer["plan"] == {
        "device_type": "CPU",
        "clients": 2,
        "devices": 4,
        "mesh": {"a": 2, "b": 2},
        "warnings": [],
    }
    assert answer["magic"] == "%dtensor_init cpu -n 2 --logical-cpus 2 --mesh a=2,b=-1 --env 'A=x y'"


async def test_a_form_begins_with_defaults(ask):
    code, answer = await ask("defaults")
    assert code == 200
    assert (await ask("check", "POST", {**answer["spec"], "kernelspec": answer["kernelspec"]}))[1]["ok"] is True
    names = [one["name"] for one in answer["kernelspecs"]]
    assert answer["kernelspec"] in names
    assert "echo" not in names
    assert answer["name"] == "dtensor-1"


def write_kernelspec(folder: Path, name: str, argv: list[str], env: dict[str, str]) -> None:
    (folder / name).mkdir()
    argv = [*argv, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    text = json.dumps({"argv": argv, "display_name": name, "language": "python", "env": env})
    (folder / name / "kernel.json").write_text(text)


async def test_clients_run_in_the_environment_of_the_chosen_kernelspec(ask, jp_kernel_dir, tmp_path):
    # Another Python, by a link in an environment of its own that sees our packages.
    venv.create(tmp_path / "other", symlinks=True, with_pip=False)
    other = str(tmp_path / "other" / "bin" / "python")
    write_kernelspec(jp_kernel_dir, "other", ["env", "WRAPPED=1", other], {"FROM_SPEC": "1"})
    body = {"device_type": "CPU", "clients": 2, "kernelspec": "other", "name": "elsewhere"}
    code, answer = await ask("check", "POST", body)
    assert answer["ok"], answer
    code, model = await ask("clusters", "POST", body)
    assert code == 201, model
    assert model["python"] == other
    code, stacks = await ask("clusters/elsewhere/stacks")
    assert (code, stacks) == (200, {"stacks": {"0": "idle: no cell runs", "1": "idle: no cell runs"}})
    await ask("clusters/elsewhere", "DELETE")


async def test_an_environment_without_the_package_is_told_of(ask, jp_kernel_dir, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    bare = str(tmp_path / "bare" / "bin" / "python")
    write_kernelspec(jp_kernel_dir, "bare", [bare], {"PYTHONPATH": ""})
    code, answer = await ask("clusters", "POST", {"clients": 2, "kernelspec": "bare"})
    assert code == 400
    assert answer["message"] == (
        f"the Python of this kernel ({bare}) has no dtensor_magic; pip install dtensor-magic there."
    )


async def test_a_name_is_taken_once(ask):
    code, _ = await ask("clusters", "POST", {"clients": 2, "name": "twice"})
    assert code == 201
    code, answer = await ask("clusters", "POST", {"clients": 2, "name": "twice"})
    assert code == 409
    assert "a cluster twice is running already" in answer["message"]
    await ask("clusters/twice", "DELETE")


async def test_a_start_that_fails_says_why_and_leaves_nothing(ask):
    body = {"clients": 2, "name": "failing", "env": {"TF_CPP_MIN_LOG_LEVEL": "0"}, "timeout": 0.05}
    code, answer = await ask("clusters", "POST", body)
    assert code == 500
    assert "0.05 s" in answer["message"]
    assert find_record("failing") is None


async def test_a_server_that_stops_takes_back_a_start_and_leaves_the_rest(ask, jp_serverapp):
    await ask("clusters", "POST", {"clients": 2, "name": "stays"})
    starting = asyncio.ensure_future(ask("clusters", "POST", {"clients": 2, "name": "unfinished"}))

    async def under_way():
        return find_record("unfinished")

    await until(under_way, "a start that is under way")
    await jp_serverapp.extension_manager.stop_all_extensions()
    assert (await starting)[0] == 500
    assert find_record("unfinished") is None
    assert find_record("stays") is not None
    await ask("clusters/stays", "DELETE")


def test_the_magic_line_has_an_option_for_every_field():
    values = {"device_type": "CPU", "env": {"A": "b c"}, "coordination_service": False, "start_method": "exec"}
    for field in fields(ClusterSpec):
        kinds = {"bool": True, "int": 3, "float": 7.5, "str": "word"}
        value = values.get(
            field.name, next((kinds[kind] for kind in kinds if str(field.type).startswith(kind)), None)
        )
        line = magic_line(ClusterSpec(**{field.name: value}))
        assert line.startswith("%dtensor_init "), field.name
