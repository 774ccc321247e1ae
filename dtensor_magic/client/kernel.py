"""The client's kernel: ipykernel's, with a status page, and an ear for its driver while a cell runs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from traitlets import Instance

from . import stacks, values
from .describe import describe, meshes
from .keeping import bind, restore, salvage
from .lookout import Lookout
from .streams import ClientStream

#: TensorFlow's code for CANCELLED.
_CANCELLED = 1


class DTensorKernel(IPythonKernel):  # type: ignore[misc]
    """A kernel that tells its lookout of each cell, and answers its driver.

    On the control channel, which a thread of its own serves while the main one may be stuck:
    ``dtensor_report_request`` is answered with where the main thread stands (see `stacks.report`);
    ``dtensor_abort_request`` aborts this client's collectives, which closes them for good;
    ``dtensor_describe_request`` tells what names hold (see `describe`).

    On the shell channel: the last one too, for values, which only the main thread reads;
    ``dtensor_salvage_request``, ``dtensor_restore_request`` and ``dtensor_bind_request`` (see `keeping`); and
    ``dtensor_values_request`` (see `values`).
    """

    lookout = Instance(Lookout, allow_none=True)

    #: ipykernel sleeps after each cell in case its output lags behind the reply; our driver waits for both.
    _execute_sleep = 0.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.control_handlers["dtensor_report_request"] = self._on_report
        self.control_handlers["dtensor_abort_request"] = self._on_abort
        self.control_handlers["dtensor_describe_request"] = self._on_describe_meanwhile
        self.shell_handlers["dtensor_describe_request"] = self._on_describe
        self.shell_handlers["dtensor_salvage_request"] = self._on_salvage
        self.shell_handlers["dtensor_restore_request"] = self._on_restore
        self.shell_handlers["dtensor_bind_request"] = self._on_bind
        self.shell_handlers["dtensor_values_request"] = self._on_values

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> Any:
        """Run a cell, saying on the status page that one runs."""
        if self.lookout is None or silent:
            return await super().do_execute(code, silent, *args, **kwargs)
        self._divert(on=False)
        count = self.shell.execution_count
        text = code.lstrip().partition("\n")[0][:200]
        run = self.get_parent("shell").get("metadata", {}).get("dtensor_run", "")
        try:
            self.lookout.begin(f"In[{count}]", text, run)
        except KeyboardInterrupt:
            # It came before the cell's own code, and must not cost the cell its reply.
            code = "raise KeyboardInterrupt"
        reply: Mapping[str, Any] = {}
        try:
            reply = await super().do_execute(code, silent, *args, **kwargs)
        finally:
            self.lookout.end(*_judge(reply), meshes(self.shell), leaving=bool(self.shell.exit_now))
        return reply

    @staticmethod
    def _divert(*, on: bool) -> None:
        if isinstance(sys.stderr, ClientStream):
            sys.stderr.divert = on

    async def _on_report(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        found = await asyncio.get_running_loop().run_in_executor(None, stacks.report)
        self.session.send(stream, "dtensor_report_reply", found, parent=parent, ident=ident)

    async def _on_abort(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        from tensorflow.python.eager import context

        current = context.context_safe()
        aborted = current is not None and current._initialized  # noqa: SLF001 - there is no public question
        if aborted:
            # TensorFlow's account of our own abort is no news: to the log with it.
            self._divert(on=True)
            current.abort_collective_ops(_CANCELLED, parent["content"]["reason"])
        self.session.send(stream, "dtensor_abort_reply", {"aborted": bool(aborted)}, parent=parent, ident=ident)

    async def _on_salvage(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        self._answer("dtensor_salvage_reply", stream, ident, parent, lambda asked: salvage(self.shell, **asked))

    async def _on_restore(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        self._answer("dtensor_restore_reply", stream, ident, parent, lambda asked: restore(self.shell, **asked))

    async def _on_bind(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        self._answer("dtensor_bind_reply", stream, ident, parent, lambda asked: bind(self.shell, **asked))

    async def _on_describe(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        self._answer("dtensor_describe_reply", stream, ident, parent, self._describe)

    def _describe(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return describe(self.shell, **asked)

    async def _on_describe_meanwhile(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        # On a thread of its own: a look at many names must not hold up an abort.
        content = await asyncio.get_running_loop().run_in_executor(
            None, self._try, self._describe, parent["content"]
        )
        self.session.send(stream, "dtensor_describe_reply", content, parent=parent, ident=ident)

    async def _on_values(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        what = values.STEPS[parent["content"]["step"]]
        with contextlib.nullcontext() if self.lookout is None else self.lookout.working(what):
            self._answer(
                "dtensor_values_reply", stream, ident, parent, lambda asked: values.serve(self.shell, **asked)
            )

    def _answer(
        self,
        kind: str,
        stream: Any,
        ident: Any,
        parent: Mapping[str, Any],
        work: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self.session.send(stream, kind, self._try(work, parent["content"]), parent=parent, ident=ident)

    @staticmethod
    def _try(work: Callable[[Mapping[str, Any]], dict[str, Any]], asked: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"status": "ok", **work(asked)}
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a value of any kind may refuse; the driver reports it
            traceback.print_exc(file=sys.__stderr__)
            return {"status": "error", "text": f"{type(error).__name__}: {error}"}


def _judge(reply: Mapping[str, Any]) -> tuple[str, str]:
    """Return a cell's outcome, and its error in one line, from its reply."""
    if reply.get("status") == "ok":
        return "done", ""
    name, text = reply.get("ename", ""), str(reply.get("evalue", "")).strip().partition("\n")[0][:200]
    return ("interrupted" if name == "KeyboardInterrupt" else "failed"), f"{name}: {text}" if text else name
