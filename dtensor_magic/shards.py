"""Values and shards of DTensors in a folder: who wrote which part of what, and how a part is put together again."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .variables import Range

#: Bytes; buffers begin at multiples of it, so that arrays over them are aligned.
_ALIGNMENT = 64

#: Bytes that are compared at a time: they fit a processor's cache.
_CHUNK = 1 << 20


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

    def shard_bytes(self, number: int) -> int:
        """Return the size of a shard."""
        count = math.prod(end - first for first, end in self.shards[number].ranges)
        return count * numpy_type(self.dtype).itemsize

    def same_tensor(self, other: StoredTensor) -> bool:
        """Whether two clients wrote parts of one tensor."""
        return (self.shape, self.dtype, self.specs, self.mesh) == (
            other.shape,
            other.dtype,
            other.specs,
            other.mesh,
        )


class MissingPartError(LookupError):
    """A part of a tensor is in nobody's shards.

    Attributes
    ----------
    place : list of int
        The first index that is missing.
    """

    def __init__(self, place: list[int]) -> None:
        super().__init__(f"its part from index {place} on was on no client that lives")
        self.place = place


class ShardWriter:
    """Writes one data file and its index.

    Parameters
    ----------
    folder : Path
    name : str
        The files' name.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._index_path = folder / f"{name}.index"
        self._file = _open_private(folder / f"{name}.data")
        self.tensors: dict[str, StoredTensor] = {}
        self.buffers: list[tuple[int, int]] = []
        self.streams: list[tuple[int, int]] = []

    def _append(self, data: memoryview | bytes) -> int:
        at = self._file.tell()
        gap = -at % _ALIGNMENT
        self._file.write(b"\0" * gap)
        self._file.write(data)
        return at + gap

    def buffer(self, data: memoryview) -> None:
        """Write a pickled object's out-of-band buffer."""
        self.buffers.append((self._append(data), data.nbytes))

    def stream(self, data: bytes) -> None:
        """Write a pickle itself."""
        self.streams.append((self._append(data), len(data)))

    def tensor(self, key: str, stored: StoredTensor, parts: Iterable[tuple[tuple[Range, ...], np.ndarray]]) -> None:
        """Write this client's parts of a tensor; a part that several of its devices hold, once."""
        seen = set()
        for ranges, array in parts:
            if ranges not in seen:
                seen.add(ranges)
                stored.shards.append(StoredShard(ranges, self._append(bytes_of(array).data)))
        self.tensors[key] = stored

    def close(self) -> None:
        """Write the index."""
        self._file.close()
        index = {
            "buffers": self.buffers,
            "streams": self.streams,
            "tensors": {key: asdict(tensor) for key, tensor in self.tensors.items()},
        }
        with _open_private(self._index_path) as file:
            file.write(json.dumps(index).encode())


def _open_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


class ShardReader:
    """Reads what others wrote.

    Parameters
    ----------
    folder : Path
    names : sequence of str
        The names of the files.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._maps: dict[str, mmap.mmap | bytes] = {}
        self._tensors: dict[str, dict[str, StoredTensor]] = {}
        self._buffers: dict[str, list[tuple[int, int]]] = {}
        self._streams: dict[str, list[tuple[int, int]]] = {}
        for name in names:
            index = json.loads((folder / f"{name}.index").read_text("utf-8"))
            with (folder / f"{name}.data").open("rb") as file:
                empty = file.seek(0, 2) == 0
                # Copy on write: restored arrays are writable, and hold their pages after the file is gone.
                self._maps[name] = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._tensors[name] = {key: StoredTensor.from_json(data) for key, data in index["tensors"].items()}
            self._buffers[name] = index["buffers"]
            self._streams[name] = index["streams"]

    def _views(self, name: str, places: Iterable[tuple[int, int]]) -> list[memoryview]:
        view = memoryview(self._maps[name])
        return [view[at : at + size] for at, size in places]

    def buffers(self, name: str) -> list[memoryview]:
        """Return the out-of-band buffers of `name`'s pickles."""
        return self._views(name, self._buffers[name])

    def stream(self, name: str) -> bytes:
        """Return `name`'s pickles, one after another."""
        return b"".join(self._views(name, self._streams[name]))

    def tensor(self, name: str, key: str) -> StoredTensor:
        """Return the tensor `key` as `name` wrote it."""
        return self._tensors[name][key]

    def part(
        self,
        wanted: StoredTensor,
        key: str,
        ranges: tuple[Range, ...],
        among: Sequence[str] | None = None,
    ) -> np.ndarray:
        """Put together the part `ranges` of a tensor from all shards that overlap it.

        Parameters
        ----------
        among : sequence of str, optional
            The files to look in; where several hold the same part, the first decides. All by default.

        Raises
        ------
        MissingPartError
            That names what no living client had.
        """
        shards = (
            (shard.ranges, self._array(name, wanted.dtype, shard))
            for name in (self._tensors if among is None else among)
            for stored in [self._tensors[name].get(key)]
            if stored is not None and stored.same_tensor(wanted)
            for shard in stored.shards
        )
        return assemble(ranges, numpy_type(wanted.dtype), shards)

    def _array(self, name: str, dtype: str, shard: StoredShard) -> np.ndarray:
        shape = tuple(end - first for first, end in shard.ranges)
        if 0 in shape:
            return np.empty(shape, numpy_type(dtype))
        array: np.ndarray = np.ndarray(shape, numpy_type(dtype), self._maps[name], shard.at)
        return array


def assemble(
    ranges: tuple[Range, ...], dtype: np.dtype[Any], shards: Iterable[tuple[tuple[Range, ...], np.ndarray]]
) -> np.ndarray:
    """Put together the part `ranges` of a tensor from shards; a shard that is just that part is not copied.

    The shards are those of one layout, so that two of them are the same part, or have nothing in common.

    Raises
    ------
    MissingPartError
        If they do not cover it.
    """
    shape = tuple(end - first for first, end in ranges)
    out: np.ndarray | None = None
    covered: set[tuple[Range, ...]] = set()
    for held, source in shards:
        if held == ranges:
            return source
        overlap = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(ranges, held, strict=True))
        if overlap in covered or any(first >= end for first, end in overlap):
            continue
        covered.add(overlap)
        if out is None:
            out = np.empty(shape, dtype)
        out[_inside(overlap, ranges)] = source[_inside(overlap, held)]
    if sum(math.prod(end - first for first, end in part) for part in covered) < math.prod(shape):
        missing = np.ones(shape, bool)
        for part in covered:
            missing[_inside(part, ranges)] = False
        first = tuple(int(axis) for axis in np.argwhere(missing)[0])
        raise MissingPartError([first[axis] + ranges[axis][0] for axis in range(len(ranges))])
    return np.empty(shape, dtype) if out is None else out


def _inside(part: tuple[Range, ...], whole: tuple[Range, ...]) -> tuple[slice, ...]:
    return tuple(slice(first - begin, end - begin) for (first, end), (begin, _) in zip(part, whole, strict=True))


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Return an array's bytes in C order: a view, where it is contiguous."""
    flat: np.ndarray = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat


def same_bytes(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two flat arrays of bytes are equal, without a copy of either."""
    return one.size == two.size and all(
        np.array_equal(one[at : at + _CHUNK], two[at : at + _CHUNK]) for at in range(0, one.size, _CHUNK)
    )


def numpy_type(name: str) -> np.dtype[Any]:
    """Return the NumPy type, also of those that TensorFlow adds (bfloat16, float8)."""
    try:
        found: np.dtype[Any] = np.dtype(name)
    except TypeError:
        # TensorFlow brings this package, and a notebook need not import all of TensorFlow for a name.
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, name))
    return found


def mesh_dims(mesh: Any) -> tuple[tuple[str, int], ...]:
    """Return a mesh's dimensions in order: name and size."""
    return tuple((name, mesh.dim_size(name)) for name in mesh.dim_names)
