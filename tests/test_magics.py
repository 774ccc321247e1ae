"""The magics in a real notebook kernel, headless."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from conftest import gone, wait_for
from notebooks import execute, kernel, run_notebook

LOAD = "%load_ext dtensor_magic"


def test_the_main_job():
    outputs = run_notebook(
        [
            LOAD,
            "%dtensor_init cpu -n 4 --mesh batch=-1",
            "%%dtensor\nprint('hello', mesh.shape())\nclient_id * 2",
            "%dtensor x = dtensor.num_clients(); print(x)",
            "%%dtensor --on 0,2-3 --output each\nprint('some')",
            "%dtensor_status",
            "%dtensor_logs 1",
            "%dtensor_restart -n 2 --mesh batch=2",
            "%dtensor print(num_clients)",
            "%dtensor_shutdown",
            "%dtensor_shutdown",
            "%dtensor_shutdown --all",
        ]
    )
    init = outputs[1].shown
    assert "4 CPU clients ready in" in init[0]["text/plain"]
    assert "dtensor-1: ready, 4 CPU clients (multi-client), mesh batch=4" in init[-1]["text/plain"]
    assert "<table>" in init[-1]["text/html"]
    assert outputs[2].stream() == "[0-3] hello [4]\n[0] 0\n[1] 2\n[2] 4\n[3] 6\n"
    assert outputs[3].stream() == "[0-3] 4\n"
    assert sorted(outputs[4].stream().splitlines()) == ["[0] some", "[2] some", "[3] some"]
    assert "ready" in outputs[5].shown[0]["text/plain"]
    assert outputs[8].stream() == "[0-1] 2\n"
    assert [output.stream() for output in outputs[9:]] == [
        "ended: dtensor-1\n",
        "no cluster runs.\n",
        "no cluster runs.\n",
    ]


def test_mistakes_are_one_line_each():
    cases = {
        "%%dtensor\nprint(1)": "no cluster runs; start one with %dtensor_init",
        "%dtensor_status --nmae x": "unknown option --nmae; did you mean --name?",
        "%dtensor_init XPU": "'XPU' is unknown; it is CPU, GPU or TPU",
        "%dtensor_init CPU -n many": "'many' is not a client count; it is 1 or more",
        "%dtensor_init CPU -n 0": "'0' is not a client count",
        "%dtensor_init CPU -n -1": "'-1' is not a client count",
        "%dtensor_init CPU -n": "expected one argument",
        "%dtensor_init CPU GPU": "unknown option GPU",
        "%dtensor_init CPU --clint 2": "unknown option --clint; did you mean --client",
        "%dtensor_init CPU -n 2 --mesh batch=3": "batch=3 has 3 devices",
        "%dtensor_init CPU -n 2 --env NOVALUE": "'NOVALUE' is not NAME=VALUE",
        "%dtensor_init CPU -n 2 --timeout soon": "'soon' is not a time",
        "%dtensor_init CPU -n 2 --name 'a b'": "letters, digits",
        "%dtensor_init CPU --logical-cpus two": "'two' is not a count",
        "%dtensor_init CPU -n 2 --env 'A=1": "No closing quotation",
        "%dtensor_init GPU": "no GPU is visible",
        "%dtensor_init CPU -n 2 --name pair": None,
        "%%dtensor --on 5\n1": "client 5 is not in pair; it has 0-1",
        "%%dtensor --on x\n1": "'x' is not a client or a range",
        "%%dtensor --on 1-0\n1": "runs backwards",
        "%%dtensor --on\n1": "--on needs a value",
        "%%dtensor --outptu none\n1": "unknown option --outptu; did you mean --output?",
        "%%dtensor --output some\n1": "fold, each, first, none",
        "%%dtensor --timeout 0\n1": "'0' is not a time",
        "%%dtensor print(1)\n1": "is no option; code goes into the lines below",
        "%%dtensor\n   \n": "the cell is empty",
        "%%dtensor --name nobody\n1": "no cluster nobody in this notebook; there is pair",
        "%dtensor_logs x": "'x' is not a client's number",
        "%dtensor_logs 7": "client 7 is not in pair",
        "%dtensor_restart -n 0": "'0' is not a client count",
        "%dtensor_init CPU -n 3 --name pair": "a cluster pair is running already",
    }
    outputs = run_notebook([LOAD, *cases], allow_errors=True)
    for (cell, says), output in zip(cases.items(), outputs[1:], strict=True):
        if says is None:
            assert output.error is None, output
            continue
        assert output.error is not None, cell
        shown = "\n".join(output.error["traceback"])
        assert says in shown, (cell, shown)
        assert shown.startswith("UsageError: "), cell
        assert "\n" not in shown, (cell, shown)


def test_errors_stop_a_headless_run_and_name_the_client():
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError, match=r"client 1 of dtensor-1 raised"):
        run_notebook(
            [LOAD, "%dtensor_init CPU -n 2", "%%dtensor\nif client_id == 1:\n    oops", "print('not reached')"]
        )


def test_rich_output_comes_through_labelled():
    code = (
        "%%dtensor\nfrom IPython.display import HTML, display, Markdown\n"
        "display(HTML('<b>same</b>'))\ndisplay(HTML(f'<i>{client_id}</i>'))\n"
        "handle = display(Markdown('before'), display_id=True)\nhandle.update(Markdown(f'after {client_id}'))"
    )
    outputs = run_notebook([LOAD, "%dtensor_init CPU -n 2", code])
    displays = [output for output in outputs[2].raw if output["output_type"] == "display_data"]
    assert [
        (output["metadata"]["dtensor"]["clients"], output["data"].get("text/html")) for output in displays[:3]
    ] == [
        ([0, 1], "<b>same</b>"),
        ([0], "<i>0</i>"),
        ([1], "<i>1</i>"),
    ]
    assert [output["data"].get("text/markdown") for output in displays[3:]] == ["after 0", "after 1"]
    assert "[0-1]\n" in outputs[2].stream()


def test_local_mode_and_its_repetition():
    outputs = run_notebook(
        [
            LOAD,
            "first = %dtensor_init CPU --logical-cpus 4 --mesh a=2,b=2",
            "second = %dtensor_init CPU --logical-cpus 4 --mesh a=2,b=2\nassert second is first",
            "print(mesh.shape(), client_id, dtensor.num_clients())",
            "%%dtensor\nprint('in', mesh.size)\nmesh.size",
            "third = %dtensor_init CPU --logical-cpus 2\nassert third is not first\nassert not first.alive",
            "print(len(dtensor.local_devices('CPU')))",
            "%dtensor_restart --mesh c=2",
            "print(mesh.shape())",
            "%dtensor_shutdown",
            "from tensorflow.dtensor.python import accelerator_util\n"
            "print(accelerator_util.is_initialized(), 'mesh' in globals())",
        ]
    )
    assert outputs[3].stream() == "[2, 2] 0 1\n"
    assert outputs[4].stream() == "in 4\n"
    assert outputs[4].shown[-1]["text/plain"] == "4"
    assert outputs[6].stream() == "2\n"
    assert outputs[8].stream() == "[2]\n"
    assert outputs[10].stream() == "False False\n"


def test_a_live_context_is_explained_with_both_ways_out_and_both_work():
    outputs = run_notebook(
        [
            LOAD,
            "import tensorflow as tf\nx = tf.ones(2) + 1",
            "%dtensor_init CPU",
            "background = %dtensor_init CPU --background --mesh x=1",
            "%dtensor print(mesh.size)",
            "%dtensor_shutdown",
            "%dtensor_init CPU --reset-context --logical-cpus 2",
            "print(len(tf.config.list_logical_devices('CPU')))",
        ],
        allow_errors=True,
    )
    shown = "\n".join(outputs[2].error["traceback"])
    assert "--reset-context" in shown
    assert "--background" in shown
    assert [output.error for output in outputs[3:]] == [None] * 5
    assert outputs[4].stream() == "1\n"
    assert outputs[7].stream() == "2\n"


def test_the_first_start_after_loading_does_not_wait_for_tensorflow_again():
    outputs = run_notebook(
        [
            "import time; start = time.time()\n%load_ext dtensor_magic\nprint(time.time() - start)",
            "import tensorflow",
            "time.sleep(5)",
            "start = time.time()\n%dtensor_init CPU -n 2\nprint(time.time() - start)",
        ]
    )
    assert float(outputs[0].stream()) < 1.0
    assert float(outputs[3].stream().split()[-1]) < 2.5


def test_unload_undoes_everything():
    with kernel() as (manager, client):
        execute(client, LOAD)
        execute(client, "%dtensor_init CPU -n 2")
        children = psutil.Process(manager.provisioner.pid).children(recursive=True)
        assert len(children) >= 4
        _, text = execute(client, "%unload_ext dtensor_magic")
        wait_for(lambda: gone([child.pid for child in children]))
        reply, _ = execute(client, "%dtensor_status")
        assert reply["status"] == "error"
        _, text = execute(
            client,
            "print([name for kind in get_ipython().magics_manager.magics.values() for name in kind if 'dtensor' in name])",
        )
        assert text == "[]\n"
        reply, _ = execute(client, f"{LOAD}\n%dtensor_init CPU -n 2")
        assert reply["status"] == "ok"


def test_prewarming_can_be_turned_off():
    with kernel() as (manager, client):
        execute(
            client, "from traitlets.config import get_config\nget_ipython().config.DTensorMagics.prewarm = False"
        )
        execute(client, LOAD)
        assert psutil.Process(manager.provisioner.pid).children() == []
        execute(client, "%config DTensorMagics.prewarm = True")
        wait_for(lambda: len(psutil.Process(manager.provisioner.pid).children(recursive=True)) == 2)
        execute(client, "%config DTensorMagics.prewarm = False")
        wait_for(lambda: psutil.Process(manager.provisioner.pid).children() == [])


def test_defaults_come_from_config():
    outputs = run_notebook(
        [
            LOAD,
            "%config DTensorMagics.device_type = 'CPU'\n%config DTensorMagics.clients = 2\n%config DTensorMagics.output = 'first'",
            "%dtensor_init",
            "%dtensor print('x')",
        ]
    )
    assert outputs[3].stream() == "[0] x\n"


def test_tab_completes_options_and_values():
    with kernel() as (_, client):
        execute(client, f"{LOAD}\n%dtensor_init CPU -n 2 --name pair")

        def complete(line: str) -> list[str]:
            reply = client.complete(line, len(line), reply=True, timeout=20)
            return reply["content"]["matches"]

        assert complete("%dtensor_init CPU --lo") == ["--logical-cpus"]
        assert complete("%dtensor_init G") == ["GPU"]
        assert complete("%dtensor_init CPU --start-method ") == ["fork", "exec"]
        assert complete("%dtensor_init --start-method=e") == ["exec"]
        options = complete("%dtensor_init ")
        assert options[:3] == ["CPU", "GPU", "TPU"]
        assert {"-n", "--clients", "--mesh", "--lease"} <= set(options)
        assert all(option.startswith("-") for option in options[3:])
        assert complete("%%dtensor --ou") == ["--output"]
        assert complete("%%dtensor --output ") == ["fold", "each", "first", "none"]
        assert complete("%dtensor_status --name ") == ["pair"]
        assert complete("%dtensor_restart --keep ") == ["all"]
        # Other cells complete as ever.
        assert "import" in complete("imp")


def test_each_magic_has_help():
    names = ["init", "restart", "shutdown", "status", "logs"]
    with kernel() as (_, client):
        execute(client, LOAD)
        for name in ["dtensor", *(f"dtensor_{name}" for name in names)]:
            reply = client.inspect(f"%{name}", reply=True, timeout=20)
            text = reply["content"]["data"]["text/plain"]
            assert "--name" in text, name


def test_a_notebook_kernel_as_one_client_of_several():
    ports = []
    for _ in range(2):
        with socket.create_server(("", 0)) as free:
            ports.append(free.getsockname()[1])
    jobs = ",".join(f"localhost:{port}" for port in ports)
    script = (
        "from tensorflow.experimental import dtensor\nimport tensorflow as tf\n"
        "dtensor.initialize_accelerator_system('CPU')\n"
        "mesh = dtensor.create_distributed_mesh([('x', 2)], device_type='CPU')\n"
        "x = dtensor.call_with_layout(tf.ones, dtensor.Layout(['x'], mesh), shape=(2,))\n"
        "print(int(tf.reduce_sum(x)), flush=True)\n"
    )
    env = {**os.environ, "DTENSOR_JOBS": jobs, "DTENSOR_CLIENT_ID": "1", "DTENSOR_NUM_CLIENTS": "2"}
    with kernel(env={**os.environ, "DTENSOR_JOBS": jobs, "DTENSOR_CLIENT_ID": "0"}) as (_, client):
        execute(client, LOAD)
        peer = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
        try:
            reply, text = execute(client, "%dtensor_init CPU --mesh x=2")
            assert reply["status"] == "ok", reply
            assert "multi-client" in text
            reply, text = execute(
                client,
                "%%dtensor\nx = dtensor.call_with_layout(tf.ones, dtensor.Layout(['x'], mesh), shape=(2,))\n"
                "print(int(tf.reduce_sum(x)), client_id)",
            )
            assert text == "2 0\n"
            assert peer.stdout is not None
            assert peer.stdout.readline() == "2\n"
            reply, _ = execute(client, "%dtensor_init CPU --mesh x=2")
            assert reply["status"] == "ok", reply
            reply, _ = execute(client, "%dtensor_init CPU --mesh y=2")
            assert "restart the kernel" in reply["evalue"]
        finally:
            peer.kill()
            peer.wait()
            peer.stdout.close()


def test_missing_peers_are_named_in_bounded_time():
    ports = []
    for _ in range(3):
        with socket.create_server(("", 0)) as free:
            ports.append(free.getsockname()[1])
    jobs = ",".join(f"localhost:{port}" for port in ports)
    start = time.monotonic()
    outputs = run_notebook(
        [LOAD, f"%dtensor_init CPU --here --jobs {jobs} --client-id 1 --timeout 2"], allow_errors=True
    )
    assert time.monotonic() - start < 20
    shown = "\n".join(outputs[1].error["traceback"])
    assert f"client 0 (localhost:{ports[0]}), client 2 (localhost:{ports[2]}) did not come up within 2 s" in shown


def test_interrupting_a_cell_interrupts_its_clients():
    with kernel() as (manager, client):
        execute(client, f"{LOAD}\n%dtensor_init CPU -n 2")
        client.execute("%%dtensor\nprint('begun', flush=True)\nimport time\ntime.sleep(60)")
        wait_for(lambda: "begun" in str(client.get_iopub_msg(timeout=20)["content"].get("text")))
        start = time.monotonic()
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=20)
        assert time.monotonic() - start < 5
        assert reply["content"]["ename"] == "ClientsInterruptedError"
        assert "clients 0-1 were interrupted" in reply["content"]["evalue"]
        _, text = execute(client, "%dtensor print('on')")
        assert "[0-1] on" in text


@pytest.mark.parametrize("how", ["kill", "restart", "shutdown"])
def test_nothing_outlives_the_notebook_kernel(how):
    with kernel() as (manager, client):
        execute(client, f"{LOAD}\n%dtensor_init CPU -n 2")
        children = [child.pid for child in psutil.Process(manager.provisioner.pid).children(recursive=True)]
        assert len(children) >= 4
        _, folder = execute(
            client, "from dtensor_magic.launchers.local import local_agent; print(local_agent().folder)"
        )
        if how == "kill":
            os.kill(manager.provisioner.pid, signal.SIGKILL)
        elif how == "restart":
            manager.restart_kernel()
        else:
            manager.shutdown_kernel()
        wait_for(lambda: gone(children), timeout=5, what="clients or the agent outlive the notebook kernel")
        wait_for(lambda: not os.path.exists(folder.strip()), timeout=5)


def test_a_hung_client_does_not_outlive_the_notebook_kernel():
    with kernel() as (manager, client):
        execute(client, f"{LOAD}\n%dtensor_init CPU -n 2 --mesh x=2")
        children = [child.pid for child in psutil.Process(manager.provisioner.pid).children(recursive=True)]
        client.execute(
            "%%dtensor\nprint('begun', flush=True)\nif client_id == 0:\n    dtensor.barrier(mesh)\nelse:\n    import time; time.sleep(100)"
        )
        wait_for(lambda: "begun" in str(client.get_iopub_msg(timeout=20)["content"].get("text")))
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        wait_for(lambda: gone(children), timeout=5, what="a hung client outlives the notebook kernel")


def test_figures_of_clients_come_through_as_images():
    code = "%%dtensor\nimport matplotlib.pyplot as plt\nplt.plot([client_id, 2])\nplt.title(f'client {client_id}')\nplt.show()"
    outputs = run_notebook([LOAD, "%dtensor_init CPU -n 2", code])
    figures = [data for data in outputs[2].shown if "image/png" in data]
    assert len(figures) == 2
    assert figures[0]["image/png"] != figures[1]["image/png"]


def test_clusters_of_one_notebook_never_share_a_name():
    outputs = run_notebook(
        [
            LOAD,
            "one = %dtensor_init CPU",
            "two = %dtensor_init CPU -n 2\nassert one.name != two.name",
            "%dtensor_shutdown --all",
        ]
    )
    assert outputs[3].stream() == "ended: dtensor-1, dtensor-2\n"


def test_two_notebooks_with_a_cluster_each_do_not_see_one_another():
    with kernel() as (_, one), kernel() as (_, two):
        for client in (one, two):
            reply, _ = execute(client, f"{LOAD}\n%dtensor_init CPU -n 2 --mesh x=2")
            assert reply["status"] == "ok", reply
        execute(one, "%dtensor where = 'one'")
        execute(two, "%dtensor where = 'two'")
        _, text = execute(
            one,
            "%dtensor print(where, int(tf.reduce_sum(dtensor.call_with_layout(tf.ones, dtensor.Layout(['x'], mesh), shape=(2,)))))",
        )
        assert text == "[0-1] one 2\n"
        reply, _ = execute(two, "%dtensor raise ValueError")
        assert reply["status"] == "error"
        execute(two, "%dtensor_shutdown")
        _, text = execute(one, "%dtensor print(where)")
        assert text == "[0-1] one\n"


def test_likely_slips_are_understood():
    outputs = run_notebook(
        [LOAD, "%dtensor_init CPU 4", "%dtensor_init CPU -n 4 --mesh batch=2, model=2"], allow_errors=True
    )
    assert "did you mean -n 4?" in outputs[1].error["evalue"]
    assert "without blanks" in outputs[2].error["evalue"]


def test_quotes_around_a_value_are_not_part_of_it():
    from dtensor_magic.magic_lines import parse_line
    from dtensor_magic.magics import DTensorMagics

    line = """CPU --mesh 'batch=2, model=1' --env 'A=b c' --env "D='e'" --name x"""
    options = parse_line(DTensorMagics.dtensor_init, line)
    assert (options.mesh, options.env, options.name) == ("batch=2, model=1", ["A=b c", "D='e'"], "x")
