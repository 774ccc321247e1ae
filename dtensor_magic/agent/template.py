"""The template: a process that has imported TensorFlow and a kernel, and forks clients of itself.

It never creates a TensorFlow context, touches no device and stays single-threaded, so that its children are as
good as fresh processes. It speaks JSON lines with its supervisor over one socket:

``{"fork": [{...}, ...]}`` is answered by ``{"pids": [...]}`` or ``{"error": ...}``; ``{"namespace": true}`` by
``{"pid": ...}``, the holder of a new network namespace. The supervisor's first line is ``{"path": [...]}``, the
clients' ``sys.path``; the template's is ``{"ready": ...}``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from .linux import die_with_parent, enter_namespace, hold_namespace

#: What a kernel imports anyway, some of it only when its first cell runs: paid once, here.
KERNEL_MODULES = (
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.debugger",
    "debugpy",
    "jedi",
    "sqlite3",
    "psutil",
    "threadpoolctl",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.core.magics",
    "IPython.extensions.storemagic",
    "tornado.platform.asyncio",
    "zmq.eventloop.zmqstream",
    "cloudpickle",
    "dtensor_magic.client.app",
    "dtensor_magic.client.streams",
)
TENSORFLOW_MODULES = ("tensorflow", "tensorflow.experimental.dtensor", "tensorflow.dtensor.python.api")

_OPTIONAL = {"debugpy", "ipykernel.debugger"}


def main(descriptor: int) -> None:
    """Serve the supervisor at the other end of socket `descriptor` until it closes."""
    connection = socket.socket(fileno=descriptor)
    # The owner's Ctrl-C is for its cell, not for us; our own session sees to that, this to the import below.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = os.getppid()
    die_with_parent(supervisor)
    lines = connection.makefile("rb")
    # The clients' own path, before TensorFlow is imported: it must come from where theirs would.
    sys.path[:] = json.loads(lines.readline())["path"]
    greeting = _preload()
    _say(connection, greeting)
    if not greeting["ready"]:
        # The next start tries again: TensorFlow may be installed by then.
        return
    for line in lines:
        request = json.loads(line)
        try:
            if "fork" in request:
                answer: dict[str, Any] = {"pids": _fork_all(connection, request["fork"], supervisor)}
            else:
                answer = {"pid": _fork_holder(connection, supervisor)}
        except OSError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(connection, answer)


def _say(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _preload() -> dict[str, Any]:
    start = time.monotonic()
    # Imports make little garbage, and the collector's passes over all that they keep are a third of their time.
    gc.disable()
    for name in (*KERNEL_MODULES, *TENSORFLOW_MODULES):
        try:
            importlib.import_module(name)
        except ImportError:
            if name not in _OPTIONAL:
                return {"ready": False, "error": traceback.format_exc()}
    _warm_tracebacks()
    # Frozen objects are not visited by the children's collector, so their pages stay shared.
    gc.freeze()
    gc.enable()
    threads = len(list(Path("/proc/self/task").iterdir()))
    return {"ready": True, "seconds": time.monotonic() - start, "threads": threads}


def _warm_tracebacks() -> None:
    """Render a traceback: IPython's first one costs a third of a second, which N clients would pay together."""
    from IPython.core.ultratb import AutoFormattedTB

    try:
        raise RuntimeError
    except RuntimeError:
        AutoFormattedTB(mode="Context", tb_offset=0).text(*sys.exc_info())


def _fork_all(connection: socket.socket, requests: list[Mapping[str, Any]], supervisor: int) -> list[int]:
    """Fork one client per request and return their pids.

    A go-between forks them and exits, so that the supervisor, a subreaper, becomes their parent: it learns their
    exit codes, and they outlive this template.
    """
    reader, writer = os.pipe()
    go_between = os.fork()
    if go_between == 0:
        try:
            pids = []
            for request in requests:
                pid = os.fork()
                if pid == 0:
                    os.close(reader)
                    os.close(writer)
                    connection.close()
                    _become_client(request, supervisor)
                pids.append(pid)
            os.write(writer, json.dumps(pids).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(go_between, 0)
    if not text:
        raise OSError("the system refused to fork a client")
    pids = json.loads(text)
    if len(pids) != len(requests):
        raise OSError(f"the system forked {len(pids)} clients of {len(requests)}")
    return list(pids)


def _fork_holder(connection: socket.socket, supervisor: int) -> int:
    reader, writer = os.pipe()
    go_between = os.fork()
    if go_between == 0:
        try:
            holder = os.fork()
            if holder == 0:
                os.close(reader)
                connection.close()
                _await_parent(supervisor)
                hold_namespace(writer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = json.loads(pipe.read() or b'{"error": "the namespace holder died"}')
    os.waitpid(go_between, 0)
    if "error" in answer:
        raise OSError(answer["error"])
    return int(answer["pid"])


def _await_parent(supervisor: int) -> None:
    """Wait until the go-between is gone and the supervisor is our parent, then end with it."""
    deadline = time.monotonic() + 10
    while os.getppid() != supervisor and time.monotonic() < deadline:
        time.sleep(0.0005)
    die_with_parent(supervisor)


def _become_client(request: Mapping[str, Any], supervisor: int) -> NoReturn:
    """Turn this fork into what ``python -m MODULE ARGS`` would have been."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _open_streams(request["log"])
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        os.chdir(request["cwd"])
        sys.path[:] = request["path"]
        sys.argv[:] = [request["module"], *request["args"]]
        _await_parent(supervisor)
        if request["namespace"] is not None:
            enter_namespace(request["namespace"])
        _reseed()
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the last line of this process: its log must tell, and nothing runs after
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _open_streams(log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)


def _reseed() -> None:
    """Give NumPy's global generator fresh entropy; the standard library's reseeds itself after a fork."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(None)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # The stream's file is gone, and with it the place to say so.
            pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
