"""Shards of DTensors in a folder: who wrote which part of what, and how a part is put together again."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...variables import Range

#: Bytes; buffers begin at multiples of it, so that arrays over them are aligned.
_ALIGNMENT = 64


@dataclass(frozen=True)
class StoredShard:
    """A part of a tensor in a client's data file.

    Attributes
    ----------
    ranges : tuple of (int, int)
        Begin and end of the part in each axis of the global tensor.
    at : int
        Its place in the file, in bytes.
    """

    ranges: tuple[Range, ...]
    at: int


@dataclass
class StoredTensor:
    """A DTensor as one client wrote it.

    Attributes
    ----------
    shape : tuple of int
        The global shape.
    dtype : str
        NumPy's name of the data type.
    specs : tuple of str
        The layout's sharding specs.
    mesh : tuple of (str, int)
        The mesh's dimensions.
    mesh_name : str
    device_type : str
    shards : list of StoredShard
        This client's.
    """

    shape: tuple[int, ...]
    dtype: str
    specs: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]
    mesh_name: str
    device_type: str
    shards: list[StoredShard] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StoredTensor:
        """Make one of what `asdict` made of one, by way of JSON."""
        values = dict(data)
        values["shape"] = tuple(values["shape"])
        values["specs"] = tuple(values["specs"])
        values["mesh"] = tuple((name, size) for name, size in values["mesh"])
        values["shards"] = [
            StoredShard(tuple((first, end) for first, end in shard["ranges"]), shard["at"])
            for shard in values["shards"]
        ]
        return cls(**values)

    def same_tensor(self, other: StoredTensor) -> bool:
        """Whether two clients wrote parts of one tensor."""
        return (self.shape, self.dtype, self.specs, self.mesh) == (
            other.shape,
            other.dtype,
            other.specs,
            other.mesh,
        )


class ShardWriter:
    """Writes one client's data file and its index."""

    def __init__(self, folder: Path, client: int) -> None:
        self._index_path = folder / f"c{client}.index"
        self._file = (folder / f"c{client}.data").open("wb")
        self.tensors: dict[str, StoredTensor] = {}
        self.buffers: list[tuple[int, int]] = []

    def _append(self, data: memoryview) -> int:
        at = self._file.tell()
        gap = -at % _ALIGNMENT
        self._file.write(b"\0" * gap)
        self._file.write(data)
        return at + gap

    def buffer(self, data: memoryview) -> None:
        """Write a pickled object's out-of-band buffer."""
        self.buffers.append((self._append(data), data.nbytes))

    def tensor(self, key: str, stored: StoredTensor, parts: Sequence[tuple[tuple[Range, ...], np.ndarray]]) -> None:
        """Write this client's parts of a tensor; a part that several of its devices hold, once."""
        seen = set()
        for ranges, array in parts:
            if ranges not in seen:
                seen.add(ranges)
                flat = np.ascontiguousarray(array).reshape(-1)
                stored.shards.append(StoredShard(ranges, self._append(flat.view(np.uint8).data)))
        self.tensors[key] = stored

    def close(self) -> None:
        """Write the index."""
        self._file.close()
        index = {
            "buffers": self.buffers,
            "tensors": {key: asdict(tensor) for key, tensor in self.tensors.items()},
        }
        self._index_path.write_text(json.dumps(index), "utf-8")


class ShardReader:
    """Reads what all clients wrote."""

    def __init__(self, folder: Path, clients: Sequence[int]) -> None:
        self._maps: dict[int, mmap.mmap | bytes] = {}
        self._tensors: dict[int, dict[str, StoredTensor]] = {}
        self._buffers: dict[int, list[tuple[int, int]]] = {}
        for client in clients:
            index = json.loads((folder / f"c{client}.index").read_text("utf-8"))
            with (folder / f"c{client}.data").open("rb") as file:
                empty = file.seek(0, 2) == 0
                # Copy on write: restored arrays are writable, and hold their pages after the file is gone.
                self._maps[client] = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._tensors[client] = {key: StoredTensor.from_json(data) for key, data in index["tensors"].items()}
            self._buffers[client] = [(at, size) for at, size in index["buffers"]]

    def buffers(self, client: int) -> list[memoryview]:
        """Return the out-of-band buffers of `client`'s pickle."""
        view = memoryview(self._maps[client])
        return [view[at : at + size] for at, size in self._buffers[client]]

    def tensor(self, client: int, key: str) -> StoredTensor:
        """Return the tensor `key` as `client` wrote it."""
        return self._tensors[client][key]

    def part(self, wanted: StoredTensor, key: str, ranges: tuple[Range, ...]) -> np.ndarray:
        """Put together the part `ranges` of a tensor from all shards that overlap it.

        Raises
        ------
        LookupError
            That names what no living client had.
        """
        shape = tuple(end - first for first, end in ranges)
        out = np.empty(shape, _dtype(wanted.dtype))
        missing = np.ones(shape, bool)
        for client, tensors in self._tensors.items():
            stored = tensors.get(key)
            if stored is None or not stored.same_tensor(wanted):
                continue
            for shard in stored.shards:
                overlap = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(ranges, shard.ranges, strict=True)]
                if any(first >= end for first, end in overlap):
                    continue
                source = self._array(client, wanted.dtype, shard)
                here = tuple(slice(f - a, e - a) for (f, e), (a, _) in zip(overlap, ranges, strict=True))
                there = tuple(slice(f - c, e - c) for (f, e), (c, _) in zip(overlap, shard.ranges, strict=True))
                if missing[here].any():
                    out[here] = source[there]
                    missing[here] = False
        if missing.any():
            first = tuple(int(axis) for axis in np.argwhere(missing)[0])
            place = [first[axis] + ranges[axis][0] for axis in range(len(ranges))]
            raise LookupError(f"its part from index {place} on was on no client that lives")
        return out

    def _array(self, client: int, dtype: str, shard: StoredShard) -> np.ndarray:
        shape = tuple(end - first for first, end in shard.ranges)
        return np.frombuffer(self._maps[client], _dtype(dtype), math.prod(shape), shard.at).reshape(shape)


def _dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy type, also of those that TensorFlow adds (bfloat16, float8)."""
    import tensorflow as tf

    found: np.dtype[Any] = np.dtype(tf.dtypes.as_dtype(name).as_numpy_dtype)
    return found


def mesh_dims(mesh: Any) -> tuple[tuple[str, int], ...]:
    """Return a mesh's dimensions in order: name and size."""
    return tuple((name, mesh.dim_size(name)) for name in mesh.dim_names)
