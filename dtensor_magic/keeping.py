"""Keep variables over a restart: the driver's side. What clients do is in `client.keeping`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .clients import ClientGroup
from .errors import KeepError
from .state import client_ranges

#: Seconds that saving and restoring may take on a client.
TIMEOUT = 300.0

_SALVAGE = "dtensor_salvage_request"
_RESTORE = "dtensor_restore_request"
_BIND = "dtensor_bind_request"


@dataclass
class Saved:
    """What living clients wrote.

    Attributes
    ----------
    folder : Path
    names : dict of int to list of str
        What each client saved, in order.
    tensors : dict of int to dict
        The keys of the DTensors that each of these names holds.
    lost : dict of str to str
        Why a name was not saved.
    silent : dict of int to str
        Clients that had died, and how.
    """

    folder: Path
    names: dict[int, list[str]] = field(default_factory=dict)
    tensors: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)

    def clear(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class KeepReport:
    """What a restart kept.

    Attributes
    ----------
    kept : list of str
        Names that all new clients have; imported modules, which they have too, are not told.
    lost : dict of str to str
        Why a name is not kept, by name.
    notes : list of str
        What else there is to say: of clients that had died, for instance.
    """

    kept: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"kept: {', '.join(self.kept)}" if self.kept else "kept: nothing"]
        lines += [f"lost: {name} ({reason})" for name, reason in self.lost.items()]
        return "\n".join(lines + self.notes)


async def save(group: ClientGroup, folder: Path, names: Sequence[str] | None) -> Saved:
    """Have all living clients write the variables `names` (None: all of the user's own) into `folder`.

    Raises
    ------
    KeepError
        If a living client cannot.
    """
    folder.mkdir(mode=0o700)  # noqa: ASYNC240 - it takes microseconds
    saved = Saved(folder)
    members = range(group.plan.clients)
    try:
        answers = await asyncio.gather(*(_save_one(group, folder, client, names) for client in members))
    except BaseException:
        saved.clear()
        raise
    for client, answer in zip(members, answers, strict=True):
        if "text" in answer and client not in group.exits:
            # The old clients stay as they are: nothing is ended that could not be saved.
            saved.clear()
            raise KeepError(group.name, client, answer["text"])
        if "text" in answer:
            saved.silent[client] = answer["text"]
            continue
        saved.names[client] = answer["kept"]
        saved.tensors[client] = answer["tensors"]
        for name, reason in answer["lost"].items():
            saved.lost.setdefault(name, reason)
    return saved


async def _save_one(
    group: ClientGroup, folder: Path, client: int, names: Sequence[str] | None
) -> Mapping[str, Any]:
    content = {"folder": str(folder), "client": client, "names": names}
    # A client whose process dies meanwhile will not answer: do not wait for it.
    answer = await group.ask_living(client, _SALVAGE, content, TIMEOUT)
    if answer is None:
        return {"text": group.exits.get(client, "did not answer")}
    return answer


async def restore(group: ClientGroup, saved: Saved) -> KeepReport:
    """Have all clients of a fresh cluster read what was saved."""
    donors = sorted(saved.names)
    report = KeepReport(lost=dict(saved.lost))
    if not donors:
        report.notes.append("no client lived to save anything.")
        return report
    members = range(group.plan.clients)
    answers = await asyncio.gather(*(_restore_one(group, saved, client, donors) for client in members))
    kept = [set(answer["kept"]) for answer in answers]
    for answer in answers:
        for name, reason in answer["lost"].items():
            report.lost.setdefault(name, reason)
    everywhere = set.intersection(*kept)
    for name in set.union(*kept) - everywhere:
        have = [client for client in members if name in kept[client]]
        report.lost.setdefault(name, f"only on client {client_ranges(have)}")
    order = saved.names[donors[0]]
    bound = [name for name in order if name in everywhere and name not in report.lost]
    await asyncio.gather(
        *(group.ask(client, _BIND, {"names": bound}, TIMEOUT, channel="shell") for client in members)
    )
    modules = set(answers[0].get("modules", ()))
    report.kept = [name for name in bound if name not in modules]
    for client, reason in saved.silent.items():
        report.notes.append(
            f"client {client} {reason.partition(chr(10))[0]}: its host values are those of client {donors[0]}, "
            "its shards those of living replicas."
        )
    return report


async def _restore_one(group: ClientGroup, saved: Saved, client: int, donors: Sequence[int]) -> Mapping[str, Any]:
    donor = client if client in saved.names else donors[0]
    content = {
        "folder": str(saved.folder),
        "donor": donor,
        "clients": list(donors),
        "names": saved.names[donor],
        "tensors": saved.tensors[donor],
    }
    answer = await group.ask(client, _RESTORE, content, TIMEOUT, channel="shell")
    if answer is None or "text" in answer:
        reason = answer["text"] if answer else f"client {client} did not answer"
        return {"kept": [], "lost": dict.fromkeys(saved.names[donor], reason)}
    return answer
