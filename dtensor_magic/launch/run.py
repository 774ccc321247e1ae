"""Run a part of a job to its end: start, pass signals on, end all when one fails, and exit with the job's code."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StartError
from ..state import describe_exit
from ..views.resources import resource_table
from .children import Child, Children
from .control import Control, Follower, Leader
from .options import LaunchOptions, parse
from .part import Part, make_part


def main(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run ``dtensor-magic launch`` with the words behind it; return the exit code.

    Raises
    ------
    SpecError
        Before anything starts.
    StartError
        If the parts of the job do not come together.
    """
    options = parse(words)
    part = make_part(options, environ)
    if options.plan:
        print(resource_table(part.resources, memory_limited=options.limit_memory))
        return 0
    return asyncio.run(_Launch(options, part).run())


def say(text: str) -> None:
    """Tell the user, beside the processes' output."""
    sys.stderr.write(f"dtensor-magic: {text}\n")
    sys.stderr.flush()


#: Seconds that processes get after a signal, as Kubernetes and Slurm give them.
_SIGNAL_GRACE = 30.0

#: Seconds that the peers of a failed process get. TensorFlow catches SIGTERM in a DTensor client and goes on, so
#: that they would wait in their collective for all the time that they are given.
_FAILURE_GRACE = 3.0


class _Launch:
    """One run."""

    def __init__(self, options: LaunchOptions, part: Part) -> None:
        self._options = options
        self._part = part
        self._code = 0
        self._why = ""
        #: Set when there is nothing more to wait for here.
        self._over = asyncio.Event()
        #: The signals that told us to end, in their order.
        self._told: list[int] = []
        self._ending = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        control = self._make_control()
        command = [sys.executable, str(self._options.script), *self._options.arguments]
        self._children = Children(
            self._child_ended, self._unread, command, self._options.logs, limit_memory=self._options.limit_memory
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            self._introduce()
            if control is not None and not await self._meet(control):
                return self._code
            tasks = self._part.tasks
            await self._children.start(tasks, labelled=len(tasks) > 1 or control is not None)
            await self._follow(control)
        finally:
            await self._children.close()
            if control is not None:
                await control.close()
        return self._code

    def _introduce(self) -> None:
        part = self._part
        if part.description is not None:
            say(f"{part.name}, as {part.description}.")
            unseen = part.description.unseen(len(part.resources.node.accelerators))
            if unseen and self._options.device_type is None:
                say(unseen)
        if part.strategy == "dtensor" and (self._options.ps or part.name.startswith("ps ")):
            say("the job uses DTensor, so its parameter servers wait for the end of the workers.")

    def _make_control(self) -> Control | None:
        part = self._part
        if part.leader is None or len(part.names) == 1:
            return None
        assert part.description is not None
        facts = [part.strategy, str(self._options.clients), *part.description.clients, *part.description.ps]
        job = hashlib.sha256("\n".join(facts).encode()).hexdigest()
        if part.name == part.names[0]:
            return Leader(part.names, part.leader[1], job, works=part.works)
        return Follower(part.name, part.leader, job, works=part.works)

    async def _meet(self, control: Control) -> bool:
        """Wait for the other parts; return whether there is something to start: a signal may end the wait."""
        meeting = asyncio.ensure_future(control.meet(self._options.timeout))
        over = asyncio.ensure_future(self._over.wait())
        waits: list[asyncio.Future[Any]] = [meeting, over]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not meeting.done():
            meeting.cancel()
            await asyncio.gather(meeting, return_exceptions=True)
            return False
        try:
            meeting.result()
        except StartError as error:
            say(str(error))
            self._code = 1
            return False
        return True

    async def _follow(self, control: Control | None) -> None:
        """Return when the job is over, here and elsewhere."""
        if not self._part.tasks and control is None:
            return
        own = asyncio.ensure_future(self._over.wait())
        if control is None:
            await own
        else:
            waits: list[asyncio.Future[Any]] = [own, control.ended]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not control.ended.done():
                await control.report(self._code, self._why)
                await control.ended
            own.cancel()
            code, why = control.ended.result()
            if code and not self._code:
                say(f"{why}; ending this part.")
            self._code = code or self._code
        await self._end()

    def _child_ended(self, child: Child) -> None:
        if self._ending:
            return
        code = child.code or 0
        if self._told and code == -signal.SIGKILL:
            # By us, since it did not end; what counts is that it was told to.
            code = -self._told[0]
        exit_code = code if code >= 0 else 128 - code
        if child.task.kind == "server" and exit_code == 0:
            # Nothing that a server should do on its own.
            exit_code = 1
        if exit_code and not self._code:
            self._code = exit_code
            self._why = f"{child.task.name} {describe_exit(code)}"
            if not self._told:
                say(f"{self._why}; ending the job." if len(self._part.tasks) > 1 else f"{self._why}.")
        scripts = [one for one in self._children.running if one.task.kind == "script"]
        # Whoever was told to stop does so in its own time, within the grace; else the first failure decides.
        if not scripts or (self._code and not self._told):
            self._over.set()

    async def _end(self) -> None:
        """End what still runs: SIGTERM, and SIGKILL after the grace."""
        self._ending = True
        await self._children.end(_FAILURE_GRACE if self._options.grace is None else self._options.grace)

    def _unread(self) -> None:
        """End the job when nobody reads its output any more, as a shell ends a command."""
        self._code = self._code or 128 + signal.SIGPIPE
        self._why = self._why or f"nobody reads the output of {self._part.name}"
        self._over.set()

    def _signalled(self, number: int) -> None:
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            # Servers have no use for it, and would die of it.
            self._children.signal(number, [one for one in self._children.running if one.task.kind == "script"])
            return
        self._told.append(number)
        scripts = [one for one in self._children.running if one.task.kind == "script"]
        if len(self._told) > 1:
            say("killing what still runs.")
            self._children.signal(signal.SIGKILL)
        elif scripts:
            grace = _SIGNAL_GRACE if self._options.grace is None else self._options.grace
            what = "Ctrl-C once more kills" if number == signal.SIGINT else "a second one kills"
            say(f"{signal.Signals(number).name} is passed on; {what}, and so does the time after {grace:g} s.")
            self._children.signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM, scripts)
            asyncio.get_running_loop().call_later(grace, self._children.signal, signal.SIGKILL)
        if not scripts:
            # Servers alone, or nothing yet: there is nobody to wait for.
            self._code = self._code or 128 + number
            self._why = self._why or f"{self._part.name} was ended by {signal.Signals(number).name}"
            self._over.set()
