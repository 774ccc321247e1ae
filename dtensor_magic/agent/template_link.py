"""The supervisor's side of a template: start it, hand it fork requests in batches, know when it is gone."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import AgentError
from .environment import BLAS_VARIABLES
from .protocol import LINE_LIMIT

#: Read while TensorFlow, NumPy or the dynamic linker load, so a template serves only clients that agree on them.
_IMPORT_TIME = ("TF_", "XLA_", "CUDA_", "LD_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "TPU_", "NCCL_")

#: For the notebook kernel's own parent; a template that inherits them would end itself.
_NOT_OURS = ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT")


class TemplateLink:
    """One template process.

    Parameters
    ----------
    env : mapping of str to str
        The environment of the clients to come.
    path : list of str
        Their ``sys.path``.
    log : Path
        Where the template's own output goes.
    umask : int
        The owner's; what clients create is the user's own affair.
    """

    def __init__(self, env: Mapping[str, str], path: list[str], log: Path, umask: int) -> None:
        self._umask = umask
        self.key = import_environment(env)
        self._env = {name: value for name, value in env.items() if name not in _NOT_OURS}
        # One thread per library while importing, so that the template has one thread when it forks.
        for name in BLAS_VARIABLES:
            self._env[name] = "1"
        if "PYTHONPATH" in os.environ:
            # Where the agent's own package was found.
            self._env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        self._path = path
        self._log = log
        self._queue: list[tuple[Mapping[str, Any], asyncio.Future[int]]] = []
        self._turn = asyncio.Lock()
        self._greeting: asyncio.Task[Mapping[str, Any]] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; its imports go on in the background."""
        ours, theirs = socket.socketpair()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dtensor_magic.agent.template", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self._log.parent,
                pass_fds=[theirs.fileno()],
                umask=self._umask,
            )
        theirs.close()
        self._greeting = asyncio.ensure_future(self._greet(ours))

    async def _greet(self, ours: socket.socket) -> Mapping[str, Any]:
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        self._say({"path": self._path})
        return await self._receive()

    def _say(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _receive(self) -> Mapping[str, Any]:
        try:
            line = await self._reader.readline()
        except OSError:
            line = b""
        if not line:
            raise AgentError(f"the template process ended; its log says:\n{self.log_tail()}")
        message: Mapping[str, Any] = json.loads(line)
        return message

    def log_tail(self) -> str:
        """Return the last of what the template wrote."""
        return self._log.read_text("utf-8", "replace")[-2000:]

    async def ready(self) -> Mapping[str, Any]:
        """Wait until everything is imported.

        Raises
        ------
        AgentError
            With the traceback, if an import failed.
        """
        assert self._greeting is not None
        greeting = await asyncio.shield(self._greeting)
        if not greeting["ready"]:
            raise AgentError(f"TensorFlow or the kernel cannot be imported:\n{greeting['error']}")
        return greeting

    @property
    def failed(self) -> bool:
        """Whether it could not import what clients need."""
        task = self._greeting
        if task is None or not task.done():
            return False
        return task.cancelled() or task.exception() is not None or not task.result()["ready"]

    async def fork(self, request: Mapping[str, Any]) -> int:
        """Fork one client and return its pid. Requests that come close together are one batch."""
        await self.ready()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queue.append((request, future))
        await asyncio.sleep(0)
        async with self._turn:
            await self._flush()
        return await future

    async def _flush(self) -> None:
        batch, self._queue = self._queue, []
        if not batch:
            return
        try:
            answer = await self._ask({"fork": [request for request, _ in batch]})
        except AgentError as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), pid in zip(batch, answer["pids"], strict=True):
            future.set_result(pid)

    async def hold_namespace(self) -> int:
        """Fork the holder of a new network namespace and return its pid."""
        await self.ready()
        async with self._turn:
            answer = await self._ask({"namespace": True})
        pid: int = answer["pid"]
        return pid

    async def _ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self._say(message)
        answer = await self._receive()
        if "error" in answer:
            raise AgentError(answer["error"])
        return answer

    def stop(self) -> None:
        """End the process."""
        if self._greeting is not None and not self._greeting.done():
            self._greeting.cancel()
        if self.process is not None and self.process.returncode is None:
            try:
                os.kill(self.process.pid, 9)
            except ProcessLookupError:
                # Reaped a moment ago: what we want already holds.
                pass
            self.process.returncode = -9


def import_environment(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that take effect only while libraries load."""
    return tuple(sorted((k, v) for k, v in env.items() if k.startswith(_IMPORT_TIME) and k not in _AFTER_IMPORT))


#: These begin like import-time variables, but each client's own initialisation reads them, or importing
#: TensorFlow sets them, so that a notebook which imported it would never find a template that agrees.
_AFTER_IMPORT = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "TF_CONFIG",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TPU_ML_PLATFORM",
        "TPU_ML_PLATFORM_VERSION",
        *BLAS_VARIABLES,
    }
)
