"""What the rebuild benchmark keeps: variables of random bits on a mesh, the same for clients and engines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

#: Variables of each kind, and their columns.
EACH, COLUMNS = 4, 3125

#: Rows of a variable per megabyte of all variables.
ROWS_PER_MB = 1_000_000 // (2 * EACH * COLUMNS * 4)


def make(mesh: dtensor.Mesh, megabytes: int) -> dict[str, dtensor.DVariable]:
    """Make float32 variables of `megabytes` in all, as global tensors: half replicated, half sharded by rows."""
    rows = ROWS_PER_MB * megabytes
    if not rows:
        return {}
    here = mesh.local_device_locations()[0]["x"]
    size = rows // mesh.dim_size("x")
    parts = {}
    for number in range(EACH):
        whole = np.random.default_rng(number).random((rows, COLUMNS), np.float32)
        parts[f"replicated_{number}"] = whole
        parts[f"sharded_{number}"] = -whole[here * size : (here + 1) * size]
    return pack(mesh, parts)


def pack(mesh: dtensor.Mesh, parts: Mapping[str, np.ndarray]) -> dict[str, dtensor.DVariable]:
    """Make variables of the parts that this client holds of each."""
    layouts = {
        "replicated": dtensor.Layout.replicated(mesh, rank=2),
        "sharded": dtensor.Layout.batch_sharded(mesh, "x", rank=2),
    }
    return {
        name: dtensor.DVariable(dtensor.pack([tf.constant(part)], layouts[name.partition("_")[0]]))
        for name, part in parts.items()
    }


def parts_of(variables: Mapping[str, dtensor.DVariable], kinds: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the parts that this client holds of the variables of some kinds."""
    return {
        name: dtensor.unpack(variable.read_value())[0].numpy()
        for name, variable in variables.items()
        if name.partition("_")[0] in kinds
    }


def digest(variables: Mapping[str, dtensor.DVariable]) -> str:
    """Return a checksum of this client's parts, with their names and layouts."""
    found = hashlib.sha256()
    for name, part in sorted(parts_of(variables, ("replicated", "sharded")).items()):
        found.update(f"{name} {variables[name].layout.sharding_specs}".encode())
        found.update(part.tobytes())
    return found.hexdigest()
