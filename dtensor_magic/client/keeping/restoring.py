"""Read saved variables in a fresh client."""

from __future__ import annotations

import pickle
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import constructors
from .shards import ShardReader


def restore(
    shell: Any,
    folder: str,
    donor: int,
    clients: Sequence[int],
    names: Sequence[str],
    tensors: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Bind the variables that client `donor` saved, with shards from all `clients`.

    Functions and classes that the namespace has already, from set-up cells, stay as they are.

    Parameters
    ----------
    names : sequence of str
        All that the donor saved, in that order.
    tensors : mapping
        The keys of the DTensors that each name holds.

    Returns
    -------
    dict
        ``kept``: the names that are bound; ``lost``: the reason for each that is not.
    """
    reader = ShardReader(Path(folder), clients)
    restoring = constructors.current = constructors.Restoring(shell.user_ns, reader, donor)
    kept: list[str] = []
    lost: dict[str, str] = {}
    own = {name for name, value in shell.user_ns.items() if isinstance(value, (type, types.FunctionType))}
    try:
        with (Path(folder) / f"c{donor}.pickle").open("rb") as file:
            loader = pickle.Unpickler(file, buffers=reader.buffers(donor))  # noqa: S301 - our own client wrote it
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
                    continue
                if name not in own and not (name == "mesh" and "mesh" in shell.user_ns):
                    shell.user_ns[name] = value
                kept.append(name)
    finally:
        constructors.current = None
    return {"kept": kept, "lost": lost}
