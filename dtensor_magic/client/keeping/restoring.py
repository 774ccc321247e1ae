"""Read saved variables in a fresh client."""

from __future__ import annotations

import pickle
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...shards import ShardReader
from . import constructors

#: What was read and not yet bound: names are bound on all clients alike, so their driver compares them first.
_read: dict[str, Any] = {}


def restore(
    shell: Any,
    folder: str,
    donor: int,
    clients: Sequence[int],
    names: Sequence[str],
    tensors: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Read the variables that client `donor` saved, with shards from all `clients`; `bind` binds them.

    Parameters
    ----------
    names : sequence of str
        All that the donor saved, in that order.
    tensors : mapping
        The keys of the DTensors that each name holds.

    Returns
    -------
    dict
        ``kept``: the names that were read; ``lost``: the reason for each that could not be; ``modules``: the kept
        names that are imported modules.
    """
    reader = ShardReader(Path(folder), [f"c{client}" for client in clients])
    source = f"c{donor}"
    restoring = constructors.current = constructors.Restoring(shell.user_ns, reader, source)
    lost: dict[str, str] = {}
    _read.clear()
    try:
        with (Path(folder) / f"{source}.pickle").open("rb") as file:
            loader = pickle.Unpickler(file, buffers=reader.buffers(source))  # noqa: S301 - our own client wrote it
            for position, name in enumerate(names):
                try:
                    _, value = loader.load()
                except Exception as error:  # noqa: BLE001 - any object's own restoring may raise anything
                    lost[name] = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
                    # What follows may refer to what could not be made.
                    lost.update(dict.fromkeys(names[position + 1 :], f"{name} before it could not be restored"))
                    break
                missing = [restoring.missing[key] for key in tensors[name] if key in restoring.missing]
                if missing:
                    lost[name] = missing[0]
                else:
                    _read[name] = value
    finally:
        constructors.current = None
    modules = [name for name, value in _read.items() if isinstance(value, types.ModuleType)]
    return {"kept": list(_read), "lost": lost, "modules": modules}


def bind(shell: Any, names: Sequence[str]) -> dict[str, Any]:
    """Bind those of the variables that were read, and drop the rest.

    Functions and classes that the namespace has already, from set-up cells, stay as they are, and so does ``mesh``.
    """
    for name in names:
        present = shell.user_ns.get(name)
        if not isinstance(present, (type, types.FunctionType)) and not (name == "mesh" and present is not None):
            shell.user_ns[name] = _read[name]
    _read.clear()
    return {}
