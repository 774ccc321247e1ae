"""Records of running clusters, in the user's Jupyter runtime folder.

An agent writes one file per cluster, named after it, so that the name is taken; other notebooks, the command line
and the Jupyter server find clusters there. A record names its agent's process by pid and start time, so a stale
one is known for what it is. Files are 0600 in a folder of 0700.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from jupyter_core.paths import jupyter_runtime_dir

from .errors import SpecError

#: What a cluster may be called.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, told apart from a later one with the same pid.

    Attributes
    ----------
    pid : int
    started : float
        Its start time as psutil gives it, seconds since the epoch.
    """

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of the process that has `pid` now.

        Raises
        ------
        psutil.NoSuchProcess
            If there is none.
        """
        return cls(pid, psutil.Process(pid).create_time())

    def alive(self) -> bool:
        """Whether that very process still runs."""
        try:
            process = psutil.Process(self.pid)
            # Start times move by a clock tick when the system's clock is corrected.
            return abs(process.create_time() - self.started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True)
class ClusterRecord:
    """Where a cluster's agent is to be found.

    Attributes
    ----------
    name : str
    agent, owner : ProcessIdentity
        The supervisor, and the process that started it.
    socket : str
        Path of the agent's control socket.
    created : float
        Seconds since the epoch.
    python : str
        The interpreter that the clients run in.
    host : str
    """

    name: str
    agent: ProcessIdentity
    owner: ProcessIdentity
    socket: str
    created: float
    python: str
    host: str = field(default_factory=platform.node)

    @classmethod
    def load(cls, path: Path) -> ClusterRecord:
        """Read the record at `path`."""
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        data["agent"] = ProcessIdentity(**data["agent"])
        data["owner"] = ProcessIdentity(**data["owner"])
        return cls(**data)


def records_folder() -> Path:
    """Return the folder of the records, made if need be, with mode 0700."""
    folder = Path(jupyter_runtime_dir()) / "dtensor-magic"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def live_records() -> list[ClusterRecord]:
    """Return the records whose agent still runs; stale ones are removed."""
    records = []
    for path in sorted(records_folder().glob("*.json")):
        record = _load_live(path)
        if record is not None:
            records.append(record)
    return sorted(records, key=lambda record: record.created)


def _load_live(path: Path) -> ClusterRecord | None:
    try:
        record = ClusterRecord.load(path)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        # Another version's: not ours to judge.
        return None
    if record.host != platform.node():
        # A home folder that hosts share: whether its agent lives is known there alone.
        return None
    if record.agent.alive():
        return record
    path.unlink(missing_ok=True)
    return None


def find_record(name: str) -> ClusterRecord | None:
    """Return the live record of the cluster `name`; None for what is no cluster's name at all."""
    if not NAME.fullmatch(name):
        return None
    return _load_live(records_folder() / f"{name}.json")


def write_record(record: ClusterRecord) -> Path:
    """Write `record`, which takes its name.

    Raises
    ------
    SpecError
        If a live cluster of this user has the name.
    """
    path = records_folder() / f"{record.name}.json"
    find_record(record.name)
    # Written aside and linked into place: the name is taken at once and whole, or not at all.
    draft = path.with_name(f".{record.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(record), file)
    try:
        os.link(draft, path)
    except FileExistsError:
        raise SpecError(name_taken(record.name)) from None
    finally:
        draft.unlink()
    return path


def name_taken(name: str) -> str:
    """Say that a cluster has `name`, and what to do."""
    return (
        f"name: a cluster {name} is running already; choose another --name, "
        f"or end that one (%dtensor_shutdown, or dtensor-magic stop {name})."
    )


def no_such_cluster(name: str) -> str:
    """Say that no cluster has `name`, and which there are."""
    known = ", ".join(record.name for record in live_records())
    return f"no cluster {name} runs; {f'there is {known}' if known else 'there is none'}."


def free_name(own: Iterable[str] = ()) -> str:
    """Return the first of ``dtensor-1``, ``dtensor-2``, ... that no live cluster has, nor one of `own`."""
    taken = {record.name for record in live_records()} | set(own)
    number = 1
    while f"dtensor-{number}" in taken:
        number += 1
    return f"dtensor-{number}"
