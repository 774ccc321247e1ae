"""Errands: processes in a cluster's own Python environment, each for one thing (`dtensor_magic.errand`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_client.kernelspec import KernelSpec

from .. import asked
from ..errors import SpecError
from ..records import records_folder

#: Seconds that an errand gets to clear up when the server stops.
_END_GRACE = 5.0


class Errands:
    """The errands that are under way."""

    def __init__(self) -> None:
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(
        self, command: Sequence[str], errand: Mapping[str, Any], env: Mapping[str, str] = os.environ
    ) -> Any:
        """Have the Python that `command` starts do `errand`, and return its result.

        Raises
        ------
        AskedError
            If it could not.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                "-m",
                "dtensor_magic.errand",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(env),
                # Python imports from the folder that it starts in; here is nothing to import.
                cwd=records_folder(),
                # Ctrl-C in the server's terminal is not for it.
                start_new_session=True,
            )
        except OSError as error:
            raise asked.AskedError("request", f"{command[0]} cannot be started: {error}.") from None
        self._running.add(process)
        try:
            output, log = await process.communicate(json.dumps(errand).encode() + b"\n")
        finally:
            self._running.discard(process)
        lines = output.splitlines()
        if not lines:
            raise _no_answer(command[0], log.decode("utf-8", "replace"))
        return asked.result(json.loads(lines[-1]))

    async def close(self) -> None:
        """End the errands: a start that is under way is taken back."""
        processes = list(self._running)
        for process in processes:
            process.send_signal(signal.SIGINT)
        waits = [asyncio.ensure_future(process.wait()) for process in processes]
        if waits:
            await asyncio.wait(waits, timeout=_END_GRACE)
        for process, wait in zip(processes, waits, strict=True):
            if not wait.done():
                process.kill()
                await wait


def _no_answer(python: str, log: str) -> asked.AskedError:
    last = log.strip().rpartition("\n")[2]
    if "No module named" in last:
        missing = last.partition("No module named")[2].strip(" '\"").partition("'")[0]
        return asked.AskedError(
            "request",
            f"the Python of this kernel ({python}) has no {missing}; pip install dtensor-magic there.",
            log,
        )
    return asked.AskedError("failed", f"{python} ended without an answer: {last}", log)


def python_command(spec: KernelSpec, name: str) -> list[str]:
    """Return the command that starts the Python of a kernel, without the kernel: ``conda run -n x python``, too.

    Raises
    ------
    SpecError
        If it is no ipykernel.
    """
    argv: list[str] = spec.argv
    for position, word in enumerate(argv[:-1]):
        if word == "-m" and argv[position + 1].startswith("ipykernel") and position:
            return [part.replace("{resource_dir}", spec.resource_dir) for part in argv[:position]]
    raise SpecError(
        f"kernelspec: {name} does not start ipykernel by python -m, so its Python is not known; choose another."
    )
