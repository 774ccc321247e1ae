"""The clusters of this user: found by their records, asked through their agents, whoever started them."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import psutil

from .. import asked
from ..agent.protocol import visit
from ..errors import AgentError, DTensorMagicError
from ..records import ClusterRecord, find_record, live_records, no_such_cluster
from ..state import ClusterPhase, ClusterState, Phase, client_ranges, to_json
from .errands import Errands

#: How owners and other notebooks hear of us.
BY = "the Jupyter server"

#: Seconds for an agent to answer.
AGENT_TIMEOUT = 5.0

#: Seconds for an owner, by what it is asked: an interrupt is over within some 5, a restart waits for its clients.
OWNER_TIMEOUTS = {"interrupt": 20.0, "stacks": 20.0, "restart": 900.0}

#: Minutes that a cluster without an owner lives on after an errand, at the least.
_LEAST_LEASE = 1.0

#: Looks, and seconds between them, for an agent's process to be gone.
_LOOKS, _LOOK = 10, 0.05

_KERNEL_FILE = re.compile(r"kernel-([^/\\]+)\.json")

Model = dict[str, Any]


class UnknownError(DTensorMagicError):
    """There is no such cluster, or client, or not any more."""


class NoAnswerError(DTensorMagicError):
    """A cluster's agent or owner does not answer in time."""


class Clusters:
    """What the server does with clusters.

    A model is a `ClusterState` as JSON, with ``owner`` (`describe_owner`), ``attach`` (the line that takes the
    cluster up in a notebook), ``python`` (the clients' interpreter) and ``host``.

    Parameters
    ----------
    errands : Errands
        Does what needs a cluster's own Python environment.
    """

    def __init__(self, errands: Errands) -> None:
        self._errands = errands
        #: Clusters that are away for a moment: we had them restarted.
        self._restarting: dict[str, Model] = {}

    async def models(self, *, sample: bool = True) -> list[Model]:
        """Return all clusters, oldest first; with `sample`, memory and CPU of the clients too."""
        records = await asyncio.to_thread(live_records)
        found = await asyncio.gather(*(self._model_or_none(record, sample) for record in records))
        models = [model for model in found if model is not None]
        names = {model["name"] for model in models}
        away = [model for name, model in self._restarting.items() if name not in names]
        return sorted([*models, *away], key=lambda model: model["created"])

    async def _model_or_none(self, record: ClusterRecord, sample: bool) -> Model | None:
        try:
            return await self._model(record, sample)
        except UnknownError:
            return None
        except DTensorMagicError as error:
            # It is there, so it is shown, with what is wrong with it.
            state = ClusterState(record.name, "", "", ClusterPhase.FAILED, created=record.created)
            state.last_error = str(error)
            return _model(record, to_json(state), {"owned": True, "pid": None, "until": None})

    async def model(self, name: str) -> Model:
        """Return the cluster `name`.

        Raises
        ------
        UnknownError
            If there is none.
        NoAnswerError
        """
        try:
            return await self._model(self._record(name), sample=True)
        except UnknownError:
            if name in self._restarting:
                return self._restarting[name]
            raise

    async def _model(self, record: ClusterRecord, sample: bool) -> Model:
        state = await self._ask(record, "clusters.state", sample=sample)
        owner = await self._ask(record, "clusters.owner")
        return _model(record, state, owner)

    def _record(self, name: str) -> ClusterRecord:
        record = find_record(name)
        if record is None:
            raise UnknownError(no_such_cluster(name))
        return record

    async def _ask(
        self,
        record: ClusterRecord,
        method: str,
        timeout: float | None = None,
        who: str = "host agent",
        **params: Any,
    ) -> Any:
        timeout = AGENT_TIMEOUT if timeout is None else timeout
        name = record.name
        try:
            async with visit(record.socket) as peer:
                return await asyncio.wait_for(peer.request(method, name=name, **params), timeout)
        except asyncio.TimeoutError:
            raise NoAnswerError(f"the {who} of {name} did not answer within {timeout:g} s.") from None
        except AgentError as error:
            if await _ended(record):
                raise UnknownError(f"{name} ended while it was asked.") from None
            raise NoAnswerError(f"{name}: {error}") from error

    async def stop(self, name: str) -> None:
        """End the cluster `name`; its owner is told that we did."""
        await self._ask(self._record(name), "clusters.close", timeout=30.0, by=BY)

    async def log(self, name: str, client: int, size: int) -> str:
        """Return the last `size` bytes of a client's log; all of it for a size below 0."""
        record = self._record(name)
        await self._check_client(record, client)
        text: str = await self._ask(record, "clients.log", client=client, size=size)
        return text

    async def stacks(self, name: str) -> dict[str, str]:
        """Return where each client's main thread stands, as text by client."""
        texts: dict[str, str] = await self._own(self._record(name), "stacks")
        return texts

    async def stack(self, name: str, client: int) -> str:
        """Return where one client's main thread stands."""
        record = self._record(name)
        await self._check_client(record, client)
        texts: dict[str, str] = await self._own(record, "stacks")
        return texts[str(client)]

    async def _check_client(self, record: ClusterRecord, client: int) -> None:
        state = await self._ask(record, "clusters.state", sample=False)
        known = [one["id"] for one in state["clients"]]
        if client not in known:
            raise UnknownError(
                f"client {client} is not in {record.name}; it has {client_ranges(known) or 'none yet'}."
            )

    async def interrupt(self, name: str) -> dict[str, Any]:
        """Interrupt the cell that runs; return ``outcomes`` by client, and as one ``message``."""
        done: dict[str, Any] = await self._own(self._record(name), "interrupt")
        return done

    async def restart(self, name: str, **options: Any) -> dict[str, Any] | None:
        """Replace the clients, with the options of `Cluster.restart`; return what was kept, where that is asked."""
        model = await self._model(self._record(name), sample=False)
        model["phase"] = ClusterPhase.STARTING.value
        for client in model["clients"]:
            client["phase"] = Phase.STARTING.value
        self._restarting[name] = model
        try:
            report: dict[str, Any] | None = await self._own(self._record(name), "restart", **options)
        finally:
            self._restarting.pop(name, None)
        return report

    async def _own(self, record: ClusterRecord, work: str, **params: Any) -> Any:
        """Have the owner do `work`, or, where there is none, an errand that takes the cluster up for that long."""
        owner = await self._ask(record, "clusters.owner")
        if owner["owned"]:
            reply = await self._ask(
                record, f"clusters.{work}", OWNER_TIMEOUTS[work], who="notebook", by=BY, **params
            )
            return asked.result(reply)
        left = (owner["until"] - time.time()) / 60 if owner["until"] is not None else 0.0
        errand = {
            "do": "own",
            "work": f"clusters.{work}",
            "params": {"name": record.name, "by": BY, **params},
            "lease": max(left, _LEAST_LEASE),
        }
        return await self._errands.run([record.python], errand)


async def _ended(record: ClusterRecord) -> bool:
    """Whether a cluster has ended. An agent's sockets close a moment before its process is gone."""
    for _ in range(_LOOKS):
        if find_record(record.name) != record:
            return True
        await asyncio.sleep(_LOOK)
    return False


def _model(record: ClusterRecord, state: Model, owner: dict[str, Any]) -> Model:
    return {
        **state,
        "owner": describe_owner(**owner),
        "attach": f"%dtensor_attach {record.name}",
        "python": record.python,
        "host": record.host,
    }


def describe_owner(*, owned: bool, pid: int | None, until: float | None) -> dict[str, Any]:
    """Return who runs a cluster.

    Returns
    -------
    dict
        ``kind``: ``notebook``, ``process`` (a script, a terminal), or ``none``; ``pid``; ``kernel_id`` of a
        notebook, as in ``/api/kernels``; ``attachable``: whether a notebook can take it up; ``until``: when
        it ends by itself, without an owner (seconds since the epoch).
    """
    kernel = _kernel_id(pid) if pid is not None else None
    kind = "none" if not owned else "process" if kernel is None else "notebook"
    return {"kind": kind, "pid": pid, "kernel_id": kernel, "attachable": not owned, "until": until}


def _kernel_id(pid: int) -> str | None:
    """Return the id of the kernel that process `pid` is, by the connection file that it was given."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return None
    matches = (_KERNEL_FILE.search(word) for word in words)
    return next((match.group(1) for match in matches if match is not None), None)
