"""Values that differ between clients, and whether two values are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from reprlib import Repr
from typing import Any

import numpy as np

from .shards import bytes_of, same_bytes
from .state import client_ranges

_short = Repr()
_short.maxother = _short.maxstring = 200


class PerClient(Mapping[int, Any]):
    """What a name holds on each client, by client id, where that is not the same on all.

    Parameters
    ----------
    values : mapping of int to object
        Alike values should be one object: they are shown as one.
    """

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._values = dict(sorted(values.items()))

    def __getitem__(self, client: int) -> Any:
        return self._values[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def groups(self) -> list[tuple[list[int], Any]]:
        """The distinct values, each with the clients that have it."""
        found: dict[int, tuple[list[int], Any]] = {}
        for client, value in self._values.items():
            found.setdefault(id(value), ([], value))[0].append(client)
        return list(found.values())

    def __repr__(self) -> str:
        lines = [f"PerClient: {len(self.groups)} values on {len(self)} clients"]
        for clients, value in self.groups:
            label = f"[{client_ranges(clients)}] "
            text = _short.repr(value) if not isinstance(value, np.ndarray) else _array_text(value)
            lines.append(label + text.replace("\n", "\n" + " " * len(label)))
        return "\n".join(lines)


def _array_text(array: np.ndarray) -> str:
    with np.printoptions(threshold=20, edgeitems=2, precision=4):
        return repr(array)


def alike(one: Any, two: Any) -> bool:
    """Whether two values are the same, to the bit, for all that is plain data; other objects are never alike.

    Two pickles of the same value may differ: in the order of a set, or in which of its strings are one object.
    """
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        same_kind = one.dtype == two.dtype and one.shape == two.shape and not one.dtype.hasobject
        return same_kind and same_bytes(bytes_of(one), bytes_of(two))
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(alike, one, two))
    if isinstance(one, dict):
        # In the same order: what a loop over it does depends on that.
        return (
            list(map(repr, one)) == list(map(repr, two))
            and alike(list(one), list(two))
            and all(map(alike, one.values(), two.values()))
        )
    if isinstance(one, float):
        return repr(one) == repr(two)
    return isinstance(one, (str, bytes, int, frozenset, set, type(None))) and bool(one == two)
