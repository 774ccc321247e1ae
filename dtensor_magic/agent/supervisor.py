"""The supervisor: starts templates, answers for clients, keeps the records of its clusters.

It ends with its owner, and everything that it started ends with it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import AgentError, SpecError
from ..records import ClusterRecord, ProcessIdentity
from ..shared_memory import clear_transfers
from ..state import to_json
from .environment import client_environment
from .hosted import HostedCluster
from .leases import Leases
from .linux import become_subreaper
from .ports import PortReservations
from .processes import ProcessTable
from .protocol import LINE_LIMIT, Peer
from .template_link import TemplateLink

#: Seconds between SIGTERM and SIGKILL when clients are ended.
STOP_GRACE = 1.0


class Supervisor:
    """One host agent.

    Parameters
    ----------
    folder : Path
        Private (0700) folder for the control socket, logs, and a folder per cluster.
    owner : ProcessIdentity
        The process that this agent serves and ends with.
    """

    def __init__(self, folder: Path, owner: ProcessIdentity) -> None:
        self.folder = folder
        self.owner = owner
        self.identity = ProcessIdentity.of(os.getpid())
        self.socket_path = folder / "agent.sock"
        self._processes = ProcessTable()
        self._ports = PortReservations()
        self._clusters: dict[str, HostedCluster] = {}
        self._template: TemplateLink | None = None
        self._leases = Leases(self._close)
        # Connections of the process that started us, and of those that attached: we serve as long as there is one.
        self._owners: set[Peer] = set()
        self._count = 0
        self._umask = os.umask(0o077)
        self._done = asyncio.Event()
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "agent.info": self._info,
            "agent.warm": self._warm,
            "clusters.update": self._update,
            "clusters.state": self._state,
            "clusters.close": self._close,
            "clients.log": self._log,
            "clients.stacks": self._stacks,
            "kernels.fork": self._fork,
            "kernels.adopt": self._adopt,
            "kernels.signal": self._signal,
            "kernels.poll": self._poll,
            "kernels.wait": self._wait,
            "kernels.forget": self._forget,
            "kernels.report": self._report,
            "ports.reserve": self._reserve,
            "ports.release": self._release,
            **self._leases.methods(),
        }
        # Those that make the asker a cluster's owner, or end that.
        self._owners_methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "clusters.open": self._open,
            "clusters.attach": self._attach,
            "clusters.detach": self._detach,
        }

    async def serve(self, owner_connection: socket.socket) -> None:
        """Run until the owner is gone and no cluster has a lease, or somebody says stop."""
        become_subreaper()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self._done.set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server = await asyncio.start_unix_server(self._visitor, str(self.socket_path), limit=LINE_LIMIT)
        self.socket_path.chmod(0o600)
        reader, writer = await asyncio.open_connection(sock=owner_connection, limit=LINE_LIMIT)
        owner = asyncio.ensure_future(self._serve_owner(Peer(reader, writer, self._handle)))
        try:
            await self._done.wait()
        finally:
            server.close()
            await self._end_everything()
            owner.cancel()

    async def _serve_owner(self, peer: Peer) -> None:
        """Serve the process that started us; when it is gone, only what has a lease stays."""
        self._watch_process(self.owner.pid, peer)
        self._owners.add(peer)
        try:
            await peer.run()
        finally:
            self._owners.discard(peer)
        self._leases.gone(peer)
        await self._leases.settled()
        # Kernels that belong to no cluster have no lease.
        clients = {key for cluster in self._clusters.values() for key in cluster.clients.values()}
        await self._processes.stop([key for key in self._processes.keys if key not in clients], STOP_GRACE)
        self._maybe_done()

    def _maybe_done(self) -> None:
        if not self._owners and not self._clusters:
            self._done.set()

    def _watch_process(self, pid: int, peer: Peer) -> None:
        """Close `peer` when process `pid` ends: a child that it forked may hold its end of the connection open."""
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            peer.close()
            return

        def ended() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            # A push or a pull that it was at.
            clear_transfers(self.folder, pid)
            peer.close()

        loop.add_reader(descriptor, ended)

    async def _end_everything(self) -> None:
        await self._processes.stop(self._processes.keys, STOP_GRACE)
        if self._template is not None:
            self._template.stop()
        for cluster in self._clusters.values():
            cluster.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        clear_transfers(self.folder)

    async def _visitor(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, self._handle)
        await peer.run()
        if peer in self._owners:
            self._owners.discard(peer)
            self._leases.gone(peer)
            await self._leases.settled()
            self._maybe_done()

    async def _handle(self, peer: Peer, method: str, params: Mapping[str, Any]) -> Any:
        if method in self._owners_methods:
            return await self._owners_methods[method](peer, **params)
        try:
            function = self._methods[method]
        except KeyError:
            raise AgentError(f"this agent (version {__version__}) knows no {method}") from None
        return await function(**params)

    def _reap(self) -> None:
        for pid, code in self._processes.reap():
            template = self._template
            if template is not None and template.process is not None and template.process.pid == pid:
                template.process.returncode = code
                # The next one is started when it is needed; clients outlive their template.
                self._template = None

    # --- the agent itself

    async def _info(self) -> dict[str, Any]:
        template = self._template
        return {
            "version": __version__,
            "pid": self.identity.pid,
            "socket": str(self.socket_path),
            "folder": str(self.folder),
            "python": sys.executable,
            "template": template.process.pid if template is not None and template.process else None,
        }

    async def _warm(self, env: dict[str, str], path: list[str], wait: bool) -> dict[str, Any]:
        """Have a template for clients with that environment; with `wait`, until it is ready."""
        template = self._template_for(env, path)
        return dict(await template.ready()) if wait else {}

    def _template_for(self, env: Mapping[str, str], path: list[str]) -> TemplateLink:
        wanted = TemplateLink(client_environment(env), path, self.folder / "template.log", self._umask)
        if self._template is not None and self._template.key == wanted.key and not self._template.failed:
            return self._template
        if self._template is not None:
            self._template.stop()
        wanted.start()
        self._template = wanted
        return wanted

    # --- clusters

    def _cluster(self, name: str) -> HostedCluster:
        try:
            return self._clusters[name]
        except KeyError:
            raise AgentError(f"no cluster {name} here") from None

    async def _open(
        self,
        peer: Peer,
        name: str,
        facts: dict[str, Any],
        lease: float,
        isolate: bool,
        env: dict[str, str],
        path: list[str],
    ) -> str:
        """Make room for a cluster that `peer` owns, and return its folder."""
        record = ClusterRecord(name, self.identity, self.owner, str(self.socket_path), time.time(), sys.executable)
        try:
            cluster = HostedCluster(record, self.folder / str(self._count), facts)
        except SpecError as error:
            raise AgentError(str(error)) from None
        self._count += 1
        self._clusters[name] = cluster
        self._leases.own(name, peer)
        self._leases.grant(name, lease)
        if isolate:
            try:
                cluster.namespace = await self._template_for(env, path).hold_namespace()
            except AgentError as error:
                await self._close(name)
                raise AgentError(f"--isolate: this system allows no network namespace ({error})") from None
        return str(cluster.folder)

    async def _attach(self, peer: Peer, name: str, pid: int) -> dict[str, Any]:
        """Make `peer`, of process `pid`, the cluster's owner; return what it needs to drive it."""
        cluster = self._cluster(name)
        owner = self._leases.owner(name)
        if owner is not None and not owner.closed:
            raise AgentError(f"cluster {name} belongs to a notebook that runs; %dtensor_detach there lets it go.")
        self._owners.add(peer)
        self._leases.own(name, peer)
        self._watch_process(pid, peer)
        return {
            "folder": str(cluster.folder),
            "facts": cluster.facts,
            "clients": {
                client.id: {"key": cluster.clients[client.id], "pid": client.pid, "exit": client.exit}
                for client in cluster.state(self._processes, sample=False).clients
            },
        }

    async def _detach(self, peer: Peer, name: str, lease: float) -> None:
        """Let the cluster go: it lives on without an owner for `lease` seconds."""
        if self._leases.owner(name) is not peer:
            raise AgentError(f"cluster {name} is not this notebook's")
        self._leases.grant(name, lease)
        self._leases.release(name)

    async def _update(self, name: str, facts: dict[str, Any]) -> None:
        self._cluster(name).facts.update(facts)

    async def _state(self, name: str, sample: bool = True) -> dict[str, Any]:
        return to_json(self._cluster(name).state(self._processes, sample=sample))

    async def _close(self, name: str, grace: float = STOP_GRACE, by: str = "") -> None:
        """End a cluster: its processes, its folder, its record. `by` tells the owner who else asked."""
        cluster = self._cluster(name)
        # First of all, so that a client whose fork is under way finds its cluster gone.
        del self._clusters[name]
        owner = self._leases.owner(name)
        if by and owner is not None:
            # Before its clients end, so that a cell that runs is told of this, and not of their dying.
            owner.notify("cluster.closed", name=name, by=by)
        await self._processes.stop(list(cluster.clients.values()), grace)
        for key in cluster.clients.values():
            self._processes.forget(key)
        cluster.remove()
        self._leases.forget(name)
        self._maybe_done()

    async def _log(self, name: str, client: int, size: int) -> str:
        return self._cluster(name).log_tail(client, size)

    async def _stacks(self, name: str, client: int) -> str:
        """Have a client's faulthandler write its threads' stacks, and return them."""
        cluster = self._cluster(name)
        path = cluster.stacks_path(client)
        before = path.stat().st_size if path.exists() else -1
        if before < 0 or not self._processes.signal(cluster.clients[client], signal.SIGUSR2, group=False):
            return ""
        # Nothing says when it is done: wait until the file has grown and stopped growing.
        size, still = before, 0
        for _ in range(50):
            await asyncio.sleep(0.02)
            now = path.stat().st_size
            still = still + 1 if now == size and now > before else 0
            size = now
            if still >= 2:
                break
        with path.open("rb") as file:
            file.seek(before)
            return file.read().decode("utf-8", "replace")

    # --- kernels

    async def _fork(
        self,
        key: str,
        module: str,
        args: list[str],
        env: dict[str, str],
        cwd: str,
        path: list[str],
        cluster: str | None = None,
        client: int | None = None,
    ) -> int:
        """Fork one kernel and return its pid."""
        hosted = self._cluster(cluster) if cluster is not None else None
        if hosted is not None and client is not None:
            hosted.clear_client(client)
            log, namespace = hosted.log_path(client), hosted.namespace
        else:
            log, namespace = self.folder / f"{key}.log", None
        # Not before the old process of the key is gone from the table: it may be a restart.
        self._processes.forget(key)
        pid = await self._template_for(env, path).fork(
            {
                "module": module,
                "args": args,
                "env": client_environment(env),
                "cwd": cwd,
                "path": path,
                "log": str(log),
                "namespace": namespace,
            }
        )
        self._processes.add_child(key, pid)
        if hosted is not None and client is not None:
            if self._clusters.get(hosted.record.name) is not hosted:
                # Closed while the template forked.
                await self._processes.stop([key], grace=0)
                raise AgentError(f"cluster {hosted.record.name} was closed while its clients started")
            hosted.add_client(client, key)
        return pid

    async def _adopt(self, key: str, pid: int, cluster: str, client: int) -> None:
        hosted = self._cluster(cluster)
        self._processes.forget(key)
        self._processes.adopt(key, pid)
        hosted.add_client(client, key)

    async def _signal(self, key: str, signum: int) -> bool:
        return self._processes.signal(key, signum)

    async def _poll(self, key: str) -> dict[str, Any]:
        process = self._processes[key]
        return {"ended": process.ended.is_set(), "code": process.code}

    async def _wait(self, key: str) -> dict[str, Any]:
        """Wait until the process ends, and return its exit code."""
        process = self._processes[key]
        await process.ended.wait()
        return {"code": process.code}

    async def _report(self, key: str, code: int | None) -> None:
        """Take in the exit code of an adopted process, which only its parent learns."""
        process = self._processes.get(key)
        if process is not None:
            process.code = code

    async def _forget(self, key: str) -> None:
        self._processes.forget(key)
        (self.folder / f"{key}.log").unlink(missing_ok=True)

    # --- ports

    async def _reserve(self, count: int = 0, ports: list[int] | None = None) -> list[int]:
        if ports is not None:
            self._ports.reserve_given(ports)
            return ports
        return self._ports.reserve(count)

    async def _release(self, ports: list[int]) -> None:
        for port in ports:
            self._ports.release(port)
