"""The REST interface, below ``/dtensor/api`` of the server's base URL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, ClassVar

from jupyter_client.kernelspec import KernelSpec, NoSuchKernel
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_escape, url_path_join
from tornado import web

from .. import asked
from ..devices import DEVICE_TYPES
from ..errand import perform
from ..errors import ClusterStateError, DTensorMagicError, NameTakenError, SpecError
from ..records import find_record, free_name, name_taken
from ..spec import ClusterSpec
from .clusters import Clusters, NoAnswerError, UnknownError
from .errands import Errands, python_command
from .specs import StartRequest, check_value, magic_line
from .watcher import Watcher

AUTH_RESOURCE = "dtensor"

ROOT = "dtensor/api"

#: Bytes of a client's log, where the request does not say how many.
_LOG_SIZE = 4000


class DTensorHandler(APIHandler):
    """What all handlers share: our errors as answers, and polling that counts as no activity."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, clusters: Clusters, errands: Errands, watcher: Watcher, lease: float) -> None:
        """Take in what the extension has."""
        self.clusters = clusters
        self.errands = errands
        self.watcher = watcher
        #: Minutes that a cluster that was started here lives on without a notebook.
        self.lease = lease

    def update_api_activity(self) -> None:
        """Let reading count as no activity: panels poll, and an idle server is still to be culled."""
        if self.request.method not in ("GET", "HEAD"):
            super().update_api_activity()

    @contextlib.contextmanager
    def answering_errors(self) -> Iterator[None]:
        """Answer our errors as ``{"message": one line, "detail": text}``."""
        try:
            yield
        except DTensorMagicError as error:
            self.set_status(_status(error))
            self.finish(json.dumps({"message": str(error), "detail": getattr(error, "detail", "")}))

    def read_body(self) -> dict[str, Any]:
        """Return the request's JSON object; empty without a body."""
        body = self.get_json_body()
        if body is None:
            return {}
        if not isinstance(body, dict):
            raise web.HTTPError(400, "The body must be a JSON object.")
        return body

    async def find_kernelspec(self, name: str | None) -> tuple[str, KernelSpec]:
        """Return the kernelspec `name`, or the server's default one."""
        name = name or self.kernel_manager.default_kernel_name
        try:
            return name, await ensure_async(self.kernel_spec_manager.get_kernel_spec(name))
        except (NoSuchKernel, KeyError):
            raise SpecError(f"kernelspec: there is no {name}; jupyter kernelspec list shows them.") from None

    def with_lease(self, spec: ClusterSpec) -> ClusterSpec:
        """Return `spec` with the server's lease, where it asks for none: no notebook holds the cluster."""
        return spec if spec.lease else replace(spec, lease=self.lease)

    async def check(self, request: StartRequest) -> dict[str, Any]:
        """Return the plan of what `request` asks for, as the environment that it chose would have it."""
        name, kernelspec = await self.find_kernelspec(request.kernelspec)
        command = python_command(kernelspec, name)
        errand = {"do": "check", "spec": asdict(self.with_lease(request.spec))}
        environ = {**os.environ, **kernelspec.env}
        if _is_this_python(command):
            plan: dict[str, Any] = asked.result(await asyncio.to_thread(perform, errand, environ))
        else:
            plan = await self.errands.run(command, errand, environ)
        return plan


def _is_this_python(command: list[str]) -> bool:
    """Whether `command` starts the server's own Python; jupyter_client takes a bare name for it."""
    # -X and the like change nothing of what a check reads.
    words = [word for word in command if not word.startswith("-")]
    return len(words) == 1 and words[0] in (sys.executable, "python", "python3", f"python3.{sys.version_info[1]}")


def _status(error: DTensorMagicError) -> int:
    """Return the HTTP status that says what `error` does."""
    if isinstance(error, asked.AskedError):
        return {"request": 400, "state": 409, "failed": 500}[error.kind]
    for kind, status in (
        (UnknownError, 404),
        (NoAnswerError, 504),
        (NameTakenError, 409),
        (ClusterStateError, 409),
        (SpecError, 400),
    ):
        if isinstance(error, kind):
            return status
    return 500


class ClustersHandler(DTensorHandler):
    """All clusters."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """List the clusters of this user."""
        self.watcher.asked()
        revision = self.watcher.revision
        self.finish(json.dumps({"revision": revision, "clusters": await self.clusters.models()}))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Start a cluster, and answer when its clients are ready."""
        with self.answering_errors():
            request = StartRequest.read(self.read_body())
            spec = self.with_lease(request.spec)
            if spec.name and find_record(spec.name) is not None:
                raise NameTakenError(name_taken(spec.name))
            name, kernelspec = await self.find_kernelspec(request.kernelspec)
            command = python_command(kernelspec, name)
            if _is_this_python(command):
                command[0] = sys.executable
            cwd: str = self.kernel_manager.cwd_for_path(request.path)  # type: ignore[no-untyped-call]
            started = await self.errands.run(
                command,
                {
                    "do": "start",
                    "spec": asdict(spec),
                    "lease": spec.lease,
                    "cwd": cwd,
                },
                {**os.environ, **kernelspec.env},
            )
            model = await self.clusters.model(started["name"])
            self.set_header("Location", url_path_join(self.base_url, ROOT, "clusters", url_escape(model["name"])))
            self.set_status(201)
            self.finish(json.dumps({**model, "warnings": started["warnings"]}))


class CheckHandler(DTensorHandler):
    """A spec, before anything starts."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Say what a spec would start, or in one line what is wrong with it."""
        try:
            request = StartRequest.read(self.read_body())
            answer = {"ok": True, "plan": await self.check(request), "magic": magic_line(request.spec)}
        except (SpecError, asked.AskedError) as error:
            answer = {"ok": False, "message": str(error)}
        self.finish(json.dumps(answer))


class DefaultsHandler(DTensorHandler):
    """What a form begins with."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Give the values of an empty form, and the choices that there are."""
        kernelspecs = []
        found = await ensure_async(self.kernel_spec_manager.get_all_specs())
        for name in sorted(found):
            with contextlib.suppress(SpecError):
                _, kernelspec = await self.find_kernelspec(name)
                python_command(kernelspec, name)
                kernelspecs.append({"name": name, "display_name": kernelspec.display_name})
        answer = {
            "spec": asdict(ClusterSpec()),
            "lease": self.lease,
            "name": free_name(),
            "kernelspec": self.kernel_manager.default_kernel_name,
            "kernelspecs": kernelspecs,
            "device_types": list(DEVICE_TYPES),
            "start_methods": ["fork"],
        }
        self.finish(json.dumps(answer))


class ClusterHandler(DTensorHandler):
    """One cluster."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Give its state."""
        with self.answering_errors():
            self.watcher.asked()
            self.finish(json.dumps(await self.clusters.model(name)))

    @web.authenticated
    @authorized
    async def delete(self, name: str) -> None:
        """End it."""
        with self.answering_errors():
            await self.clusters.stop(name)
            self.set_status(204)
            self.finish()


class InterruptHandler(DTensorHandler):
    """The cell that runs."""

    @web.authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Interrupt it, and say what came of each client."""
        with self.answering_errors():
            self.finish(json.dumps(await self.clusters.interrupt(name)))


class RestartHandler(DTensorHandler):
    """New clients for old ones."""

    #: The body's fields: their types, and what they are where they are missing.
    _FIELDS: ClassVar[dict[str, tuple[Any, Any]]] = {
        "keep": (str | list | None, None),
        "clients": (int | None, None),
        "mesh": (str | None, None),
        "replay": (bool, False),
        "interrupt": (bool, False),
    }

    @web.authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Replace the clients, and say what was kept."""
        with self.answering_errors():
            options = self._options()
            report = await self.clusters.restart(name, **options)
            self.finish(json.dumps({"report": report, "cluster": await self.clusters.model(name)}))

    def _options(self) -> dict[str, Any]:
        body = self.read_body()
        for field in body:
            if field not in self._FIELDS:
                raise SpecError(f"{field} is no field of a restart; it has {', '.join(self._FIELDS)}.")
        options = {field: body.get(field, default) for field, (_, default) in self._FIELDS.items()}
        for field, (hint, _) in self._FIELDS.items():
            if field != "keep":
                check_value(field, options[field], hint)
        keep = ["all"] if options["keep"] == "all" else options["keep"]
        if keep is not None and not (isinstance(keep, list) and all(_is_name(one) for one in keep)):
            raise SpecError('keep: it is "all", a list of names, or null.')
        return {**options, "keep": keep}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


class StacksHandler(DTensorHandler):
    """Where all clients stand."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Give each client's stack."""
        with self.answering_errors():
            self.finish(json.dumps({"stacks": await self.clusters.stacks(name)}))


class ClientStacksHandler(DTensorHandler):
    """Where one client stands."""

    @web.authenticated
    @authorized
    async def get(self, name: str, client: str) -> None:
        """Give the client's stack."""
        with self.answering_errors():
            text = await self.clusters.stack(name, int(client))
            self.finish(json.dumps({"client": int(client), "stack": text}))


class ClientLogsHandler(DTensorHandler):
    """What one client wrote."""

    @web.authenticated
    @authorized
    async def get(self, name: str, client: str) -> None:
        """Give the end of the client's log, or the whole."""
        with self.answering_errors():
            text = await self.clusters.log(name, int(client), self._size())
            self.finish(json.dumps({"client": int(client), "text": text}))

    def _size(self) -> int:
        given = self.get_argument("size", str(_LOG_SIZE))
        try:
            return int(given)
        except ValueError:
            raise SpecError(f"size: {given!r} is not a number of bytes, nor -1 for the whole log.") from None


_NAME = r"(?P<name>[^/]+)"
_CLIENT = r"clients/(?P<client>[0-9]{1,9})"

default_handlers: list[tuple[str, type[DTensorHandler]]] = [
    (rf"/{ROOT}/defaults", DefaultsHandler),
    (rf"/{ROOT}/clusters", ClustersHandler),
    (rf"/{ROOT}/clusters/{_NAME}", ClusterHandler),
    (rf"/{ROOT}/clusters/{_NAME}/interrupt", InterruptHandler),
    (rf"/{ROOT}/clusters/{_NAME}/restart", RestartHandler),
    (rf"/{ROOT}/clusters/{_NAME}/stacks", StacksHandler),
    (rf"/{ROOT}/clusters/{_NAME}/{_CLIENT}/stacks", ClientStacksHandler),
    (rf"/{ROOT}/clusters/{_NAME}/{_CLIENT}/logs", ClientLogsHandler),
    # A cluster may be called "check", so this is no name's place.
    (rf"/{ROOT}/check", CheckHandler),
]
