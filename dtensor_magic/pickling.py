"""Pickle values whose arrays and tensors travel beside the pickle, as bytes that nobody copies needlessly."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

from .shards import bytes_of

#: Bytes; a buffer below it is no gain beside the pickle, and would keep a page for itself.
_IN_BAND = 4096


class ArrayPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that puts NumPy arrays and TensorFlow tensors of any data type and order out of band.

    NumPy's own way leaves out what has no buffer, such as bfloat16 and dates, and arrays that are not contiguous.

    Parameters
    ----------
    file : binary file
        Where the pickle goes.
    buffer : callable
        Takes each out-of-band buffer.
    """

    def __init__(self, file: Any, buffer: Callable[[memoryview], object]) -> None:
        def out_of_band(view: pickle.PickleBuffer) -> bool:
            raw = view.raw()
            if raw.nbytes < _IN_BAND:
                return True
            buffer(raw)
            return False

        super().__init__(file, protocol=5, buffer_callback=out_of_band)

    def reducer_override(self, value: Any) -> Any:
        """Return how `value` is made again, or NotImplemented for pickle's own way."""
        if type(value) is np.ndarray and not value.dtype.hasobject and value.dtype.itemsize:
            order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
            flat = bytes_of(value.T if order == "F" else value)
            return make_array, (value.dtype, value.shape, order, pickle.PickleBuffer(flat.data))
        found = _reduce_tensor(value) if _is_tensorflow(value) else None
        return found or super().reducer_override(value)


def _is_tensorflow(value: Any) -> bool:
    """Whether `value` is a tensor with a value, or a variable. Where TensorFlow is not imported, nothing is."""
    tf = sys.modules.get("tensorflow")
    kinds = tuple(getattr(tf, name) for name in ("Tensor", "Variable") if hasattr(tf, name))
    return isinstance(value, kinds) and hasattr(value, "numpy")


def _reduce_tensor(value: Any) -> Any:
    import tensorflow as tf

    if isinstance(value, tf.Variable):
        return make_variable, (value.numpy(), variable_options(value))
    if value.dtype == tf.string:
        return make_tensor, (value.numpy(), "string")
    return make_tensor, (np.asarray(value), value.dtype.name)


def variable_options(value: Any) -> dict[str, Any]:
    """Return the arguments that make another ``tf.Variable`` like this one."""
    return {
        "trainable": value.trainable,
        "name": value.name.partition(":")[0],
        "dtype": value.dtype.name,
        "synchronization": value.synchronization,
        "aggregation": value.aggregation,
        "shape": None if value.shape.rank is None else value.shape.as_list(),
    }


def make_array(dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, data: Any) -> np.ndarray:
    """Make an array over `data`, writable whatever that is."""
    view = memoryview(data)
    if not view.nbytes:
        return np.empty(shape, dtype, order)
    array: np.ndarray = np.ndarray(shape, dtype, bytearray(view) if view.readonly else view, order=order)
    return array


def make_tensor(value: Any, dtype: str) -> Any:
    """Make a ``tf.Tensor``; over the array's own memory, where TensorFlow can."""
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    if dtype == "string":
        return tf.constant(value, tf.string)
    # What tf.constant does, but for its copy: nobody else has this array.
    current = context.context()
    current.ensure_initialized()
    return ops.EagerTensor(value, current.device_name, tf.dtypes.as_dtype(dtype).as_datatype_enum)


def make_variable(value: Any, options: dict[str, Any]) -> Any:
    """Make a ``tf.Variable`` that is no DVariable."""
    import tensorflow as tf

    return tf.Variable(value, **options)


@dataclass
class Pickled:
    """A pickle and what belongs beside it.

    Attributes
    ----------
    stream : bytes
    buffers : list of memoryview
    """

    stream: bytes
    buffers: list[memoryview] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """How many bytes it is in all."""
        return len(self.stream) + sum(buffer.nbytes for buffer in self.buffers)


def pickled(values: dict[str, Any]) -> dict[str, Pickled]:
    """Pickle values for :func:`unpickled`, which takes them in this order; what they share stays shared.

    Raises
    ------
    UnpicklableError
        For the first that cannot be.
    """
    file = io.BytesIO()
    buffers: list[memoryview] = []
    pickler = ArrayPickler(file, buffers.append)
    found = {}
    for name, value in values.items():
        at, before = file.tell(), len(buffers)
        try:
            pickler.dump(value)
        except Exception as error:  # any object's own pickling may raise anything
            raise UnpicklableError(name, reason(error)) from error
        found[name] = Pickled(file.getvalue()[at:], buffers[before:])
    return found


class UnpicklableError(Exception):
    """A value cannot be pickled.

    Attributes
    ----------
    name, reason : str
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.reason = why


def reason(error: BaseException) -> str:
    """Say in one line what an exception is."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}{': ' * bool(text)}{text}"
