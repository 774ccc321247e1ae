"""What this client's devices hold of a DTensor, without a collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..shards import StoredTensor, mesh_dims
from ..variables import Range, part_of

#: How often a read that was cancelled is tried.
_READ_TRIES = 4


def forget_aborted() -> None:
    """Clear TensorFlow's memory of an operation that was aborted.

    It would make every later one fail, also those that only read what is here.
    """
    from tensorflow.python.eager import context

    current = context.context_safe()
    if current is not None and current._initialized:  # noqa: SLF001 - there is no public question
        context.async_clear_error()


def reader_of(value: Any) -> tuple[Callable[[], Any], Any] | None:
    """Return how a DTensor or DVariable is read, and its layout; None for what is neither."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    if isinstance(value, tf.Variable):
        layout = getattr(value, "layout", None)
        return None if layout is None else (value.read_value, layout)
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy") and dtensor.is_dtensor(value):
        return (lambda: value), dtensor.fetch_layout(value)
    return None


def read_parts(
    read: Callable[[], Any], layout: Any
) -> tuple[StoredTensor, list[tuple[tuple[Range, ...], np.ndarray]]]:
    """Return what a DTensor is, and the part of it that each device of this client holds.

    Raises
    ------
    TypeError
        For strings.
    """
    tensor, local = _read(read)
    if tensor.dtype.name == "string":
        raise TypeError("a DTensor of strings has no bytes of its own to write")
    dims = mesh_dims(layout.mesh)
    shape = tuple(tensor.shape.as_list())
    specs = tuple(layout.sharding_specs)
    stored = StoredTensor(shape, tensor.dtype.name, specs, dims, layout.mesh.name, layout.mesh.device_type())
    locations = layout.mesh.local_device_locations()
    parts = [
        (part_of(shape, specs, dict(dims), location), part) for location, part in zip(locations, local, strict=True)
    ]
    return stored, parts


def _read(read: Callable[[], Any]) -> tuple[Any, list[np.ndarray]]:
    """Return a DTensor and its local parts, over their own memory where that is the host's.

    The first operations after an abort may still be cancelled, whatever they are; the next ones are not.
    """
    import tensorflow as tf
    from tensorflow.experimental import dtensor
    from tensorflow.python.eager import context

    for attempt in range(1, _READ_TRIES + 1):
        try:
            tensor = read()
            return tensor, [np.asarray(part) for part in dtensor.unpack(tensor)]
        except tf.errors.CancelledError:
            context.async_clear_error()
            if attempt == _READ_TRIES:
                raise
    raise AssertionError
