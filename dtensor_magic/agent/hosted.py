"""A cluster as its agent holds it: the folder, the record, and the state that every view shows."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..records import ClusterRecord, write_record
from ..state import CellSpan, ClientState, ClusterPhase, ClusterState, DeviceState, MeshState, Phase, describe_exit
from .processes import ProcessTable
from .status import StatusReader

_LIVE = (Phase.STARTING, Phase.INITIALISING, Phase.READY, Phase.BUSY, Phase.WAITING)


class HostedCluster:
    """One cluster of this agent.

    Parameters
    ----------
    record : ClusterRecord
    folder : Path
        Private to the cluster: sockets, connection files, status pages and logs.
    facts : mapping
        ``mode``, ``device_type``, ``jobs`` and ``meshes``, as the driver knows them.
    """

    def __init__(self, record: ClusterRecord, folder: Path, facts: Mapping[str, Any]) -> None:
        self.record = record
        self.folder = folder
        self.facts = dict(facts)
        self.clients: dict[int, str] = {}
        self.namespace: int | None = None
        self._pages: dict[int, StatusReader] = {}
        folder.mkdir(mode=0o700)
        try:
            self._record_path = write_record(record)
        except BaseException:
            folder.rmdir()
            raise

    def add_client(self, client: int, key: str) -> None:
        """Note that process `key` is client `client`."""
        self.clients[client] = key
        self._pages[client] = StatusReader(str(self.status_path(client)))

    def status_path(self, client: int) -> Path:
        """Where the client's status page is."""
        return self.folder / f"c{client}.status"

    def log_path(self, client: int) -> Path:
        """Where the client's own output (file descriptors 1 and 2) goes."""
        return self.folder / f"c{client}.log"

    def stacks_path(self, client: int) -> Path:
        """Where the client's faulthandler writes."""
        return self.folder / f"c{client}.stacks"

    def log_tail(self, client: int, size: int) -> str:
        """Return the last `size` bytes of the client's log; all of it for a size below 0."""
        path = self.log_path(client)
        if not path.exists():
            return ""
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(0 if size < 0 else max(0, end - size))
            return file.read().decode("utf-8", "replace")

    def clear_client(self, client: int) -> None:
        """Drop what an earlier process left, so that a new one starts afresh. Its log stays."""
        self.status_path(client).unlink(missing_ok=True)
        self.clients.pop(client, None)
        self._pages.pop(client, None)

    def state(self, processes: ProcessTable, *, sample: bool = True) -> ClusterState:
        """Return the state now; with `sample`, memory and CPU too (some milliseconds per client)."""
        clients = [self._client_state(client, processes, sample) for client in sorted(self.clients)]
        busy = next((client for client in clients if client.phase in (Phase.BUSY, Phase.WAITING)), None)
        return ClusterState(
            name=self.record.name,
            mode=self.facts["mode"],
            device_type=self.facts["device_type"],
            phase=self._phase(clients),
            meshes=self._meshes(),
            clients=clients,
            cell=self._pages[busy.id].read().get("text") if busy else None,
            created=self.record.created,
            last_error=self.facts.get("last_error", ""),
        )

    def _meshes(self) -> list[MeshState]:
        """Return the meshes that names hold on the clients; before the first cell, the one that was asked for."""
        found: dict[str, Any] = {}
        for page in self._pages.values():
            for mesh in page.read().get("meshes", self.facts.get("meshes", ())):
                found.setdefault(mesh["name"], mesh)
        return [MeshState(**mesh) for mesh in found.values()]

    @staticmethod
    def _phase(clients: Iterable[ClientState]) -> ClusterPhase:
        phases = {client.phase for client in clients}
        if phases & {Phase.FAILED, Phase.DEAD}:
            return ClusterPhase.FAILED
        if not phases or phases & {Phase.STARTING, Phase.INITIALISING}:
            return ClusterPhase.STARTING
        return ClusterPhase.BUSY if phases & {Phase.BUSY, Phase.WAITING} else ClusterPhase.READY

    def _client_state(self, client: int, processes: ProcessTable, sample: bool) -> ClientState:
        page = self._pages[client].read()
        process = processes.get(self.clients[client])
        jobs = self.facts.get("jobs") or ()
        state = ClientState(
            id=client,
            pid=process.pid if process else None,
            address=jobs[client] if client < len(jobs) else "",
            phase=Phase(page.get("phase", Phase.STARTING.value)),
            cell=page.get("cell"),
            line=page.get("line"),
            since=page.get("since", self.record.created),
            error=page.get("error", ""),
            said=page.get("said", ""),
            cells=[CellSpan.from_json(cell) for cell in page.get("cells", ())],
            devices=[DeviceState(**device) for device in page.get("devices", ())],
        )
        running = state.phase in (Phase.BUSY, Phase.WAITING)
        if running:
            span = CellSpan(page["cell"], page["text"], page["began"], run=page["run"])
            span.waits = [(begin, end) for begin, end in page["waits"]]
            state.cells.append(span)
        if process is not None and process.ended.is_set():
            state.exit = "called exit() and ended" if page.get("leaving") else describe_exit(process.code)
            if state.phase in _LIVE:
                state.phase = Phase.DEAD
                state.since = process.ended_at
                if running:
                    span.finish(process.ended_at, "died")
        elif process is not None and sample:
            state.rss, state.pss, state.cpu = process.sample()
        return state

    def remove(self) -> None:
        """Delete the folder and the record, and end the holder of the network namespace, if there is one."""
        if self.namespace is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.namespace, signal.SIGKILL)
        self._record_path.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
