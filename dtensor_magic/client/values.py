"""Take values that the notebook pushed, and give those that it pulls: the client's side of `dtensor_magic.values`.

A push is two steps, so that names are bound on all clients or on none: ``take`` maps and unpickles, ``bind`` binds.
A pull is up to three: ``offer`` pickles, and says how large everything is and what it looks like; ``write`` writes
what this client was chosen for, and once more with what others wrote: alike values are compared where they are,
and only what differs is written again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from ..pickling import ArrayPickler, Pickled, reason
from ..shards import ShardReader, ShardWriter, StoredShard, StoredTensor, bytes_of, same_bytes
from ..variables import Range
from .parts import forget_aborted, read_parts, reader_of

#: The steps, and what a view says of a client that is at one.
STEPS = {"take": "push", "bind": "push", "offer": "pull", "write": "pull", "drop": "pull"}

#: Bytes; a pickle below it, with nothing beside it, goes into the answer itself.
_INLINE = 1 << 18


def global_array(key: str) -> Any:
    """Stand in a pickle for a DTensor: whoever reads it puts the global array here."""
    raise pickle.UnpicklingError(f"{key} is a DTensor, which only a pull puts together")


class _Offer:
    """What a name holds, as it would travel."""

    def __init__(self, name: str, value: Any) -> None:
        file = io.BytesIO()
        buffers: list[memoryview] = []
        pickler = _Offering(name, file, buffers.append)
        pickler.dump(value)
        self.pickled = Pickled(file.getvalue(), buffers)
        self.tensors = pickler.tensors
        self._single = reader_of(value) is not None
        self._digest = hashlib.sha256(_anonymous(self.pickled.stream, pickler.classes)).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return what the driver plans by, as JSON."""
        stream = self.pickled.stream
        inline = not self.pickled.buffers and len(stream) < _INLINE
        return {
            "digest": self._digest,
            "buffers": [buffer.nbytes for buffer in self.pickled.buffers],
            "size": self.pickled.nbytes,
            "stream": base64.b64encode(stream).decode() if inline else None,
            "single": self._single,
            "tensors": {key: asdict(stored) for key, (stored, _) in self.tensors.items()},
        }


#: What was offered, by name, until the pull is over.
_offers: dict[str, _Offer] = {}

#: What was pushed, by name, until all clients have it.
_taken: dict[str, Any] = {}


def serve(shell: Any, step: str, **asked: Any) -> dict[str, Any]:
    """Do one step of a push or a pull; what goes wrong is the value's fault, and told in a line."""
    steps: dict[str, Callable[..., dict[str, Any]]] = {
        "take": _take,
        "bind": _bind,
        "offer": _offer,
        "write": _write,
        "drop": _drop,
    }
    try:
        return steps[step](shell, **asked)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a value of any kind may refuse
        return {"status": "error", "text": reason(error)}


def _take(shell: Any, folder: str, names: Sequence[str]) -> dict[str, Any]:  # noqa: ARG001 - as all steps
    """Map and unpickle what the notebook wrote: a file per name."""
    _taken.clear()
    reader = ShardReader(Path(folder), names)
    stream = io.BytesIO(b"".join(reader.stream(name) for name in names))
    buffers = [buffer for name in names for buffer in reader.buffers(name)]
    loader = pickle.Unpickler(stream, buffers=buffers)  # noqa: S301 - the notebook wrote it, into a private folder
    for name in names:
        try:
            _taken[name] = loader.load()
        except BaseException as error:
            _taken.clear()
            raise ValueError(f"{name}: {reason(error)}") from error
    return {}


def _bind(shell: Any) -> dict[str, Any]:
    shell.user_ns.update(_taken)
    _taken.clear()
    return {}


def _drop(shell: Any) -> dict[str, Any]:  # noqa: ARG001
    """Let go of what was taken or offered."""
    _taken.clear()
    _offers.clear()
    return {}


def _offer(shell: Any, names: Sequence[str]) -> dict[str, Any]:
    """Pickle names; say of each what it is, or why it cannot travel."""
    forget_aborted()
    _offers.clear()
    found: dict[str, Any] = {}
    for name in names:
        if name not in shell.user_ns:
            found[name] = {"missing": True}
            continue
        try:
            _offers[name] = _Offer(name, shell.user_ns[name])
            found[name] = _offers[name].describe()
        except Exception as error:  # noqa: BLE001 - any object's own pickling may raise anything
            found[name] = {"error": reason(error)}
    return {"names": found}


class _Offering(ArrayPickler):
    """A pickler that leaves a DTensor's shards aside, for the reader to put together."""

    def __init__(self, name: str, file: Any, buffer: Any) -> None:
        super().__init__(file, buffer)
        self._name = name
        self._keys: dict[int, str] = {}
        self.tensors: dict[str, tuple[StoredTensor, list[np.ndarray]]] = {}
        #: Classes that travel by value.
        self.classes: list[type] = []

    def reducer_override(self, value: Any) -> Any:
        """Return how `value` is made again, or NotImplemented for pickle's own way."""
        from tensorflow.experimental import dtensor

        if isinstance(value, (dtensor.Mesh, dtensor.Layout)):
            kind = type(value).__name__
            raise TypeError(f"a {kind} is of the clients' own devices, and stays with them")
        found = reader_of(value)
        if found is not None:
            return global_array, (self._store(value, *found),)
        if isinstance(value, type) and value.__module__ == "__main__":
            self.classes.append(value)
        return super().reducer_override(value)

    def _store(self, owner: Any, read: Any, layout: Any) -> str:
        key = self._keys[id(owner)] = f"{self._name}/{len(self._keys)}"
        stored, parts = read_parts(read, layout)
        distinct: dict[tuple[Range, ...], np.ndarray] = {}
        for ranges, part in parts:
            if ranges in distinct and not same_bytes(bytes_of(distinct[ranges]), bytes_of(part)):
                raise ValueError("its replicas on this client's own devices differ; dtensor.unpack shows them")
            distinct.setdefault(ranges, part)
        stored.shards = [StoredShard(ranges, 0) for ranges in distinct]
        self.tensors[key] = stored, list(distinct.values())
        return key


def _anonymous(stream: bytes, classes: Sequence[type]) -> bytes:
    """Return a pickle without what differs between clients for no reason of the user's.

    That is the process's number in the file names of cells, and the random ids by which cloudpickle tracks classes.
    """
    words = [f"ipykernel_{os.getpid()}".encode()]
    known = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
    words += [known[kind].encode() for kind in classes if kind in known]
    for word in words:
        stream = stream.replace(word, b"")
    return stream


def _write(
    shell: Any,  # noqa: ARG001 - as all steps
    folder: str,
    writer: str,
    name: str,
    value: str | None,
    parts: Sequence[tuple[str, int, str | None]],
) -> dict[str, Any]:
    """Write what `name` holds, as far as this client was chosen for it.

    Parameters
    ----------
    folder, writer : str
        Where to, and the files' name.
    name : str
    value : str or None
        The files of who wrote an alike value, to write only what differs; empty to write in any case; None not to
        write the value itself.
    parts : sequence of (str, int, str or None)
        Shards: the key, which of this client's, and who wrote the same part.

    Returns
    -------
    dict
        ``value``: whether the value was written; ``parts``: key and number of the shards that were.
    """
    offer = _offers[name]
    rivals = {other for other in (value, *(other for _, _, other in parts)) if other}
    reader = ShardReader(Path(folder), sorted(rivals))
    own = value is not None and not (value and _same_value(offer.pickled, reader, value))
    chosen: dict[str, list[int]] = {}
    for key, number, other in parts:
        stored, arrays = offer.tensors[key]
        ranges = stored.shards[number].ranges
        if other is None or not same_bytes(
            bytes_of(arrays[number]), bytes_of(reader.part(stored, key, ranges, [other]))
        ):
            chosen.setdefault(key, []).append(number)
    if own or chosen:
        file = ShardWriter(Path(folder), writer)
        try:
            if own:
                file.stream(offer.pickled.stream)
                for buffer in offer.pickled.buffers:
                    file.buffer(buffer)
            for key, numbers in chosen.items():
                stored, arrays = offer.tensors[key]
                written = StoredTensor(**{**stored.__dict__, "shards": []})
                file.tensor(key, written, [(stored.shards[n].ranges, arrays[n]) for n in numbers])
        finally:
            file.close()
    return {"value": own, "parts": [(key, number) for key, numbers in chosen.items() for number in numbers]}


def _same_value(mine: Pickled, reader: ShardReader, other: str) -> bool:
    # The pickles themselves were compared by their digests.
    theirs = reader.buffers(other)
    return len(theirs) == len(mine.buffers) and all(
        same_bytes(np.frombuffer(one, np.uint8), np.frombuffer(two, np.uint8))
        for one, two in zip(mine.buffers, theirs, strict=True)
    )
