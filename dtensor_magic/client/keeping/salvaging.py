"""Write a client's variables into a folder."""

from __future__ import annotations

import io
import linecache
import marshal
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...pickling import ArrayPickler
from ...shards import ShardWriter, mesh_dims
from ..parts import forget_aborted, read_parts
from . import constructors

#: What a client has from the start, or IPython keeps for itself.
NOT_KEPT = frozenset(
    {"In", "Out", "get_ipython", "exit", "quit", "open", "client_id", "num_clients", "device_type"}
)


def salvage(shell: Any, folder: str, client: int, names: Sequence[str] | None) -> dict[str, Any]:
    """Write the variables `names` of the shell, all of the user's own for None.

    Returns
    -------
    dict
        ``kept``: the names that were written, in order; ``lost``: the reason for each that could not be;
        ``tensors``: the keys of the DTensors that each name holds, shared ones too.
    """
    forget_aborted()
    wanted = user_names(shell) if names is None else list(names)
    lost = {name: "there is no such name" for name in wanted if name not in shell.user_ns}
    values: dict[str, Any] = {}
    touched: dict[str, list[int]] = {}
    for name in wanted:
        if name not in lost:
            try:
                touched[name] = _try(shell, shell.user_ns[name])
                values[name] = shell.user_ns[name]
            except BaseException as error:  # noqa: BLE001 - any object's own pickling may raise anything
                lost[name] = _why(shell.user_ns[name], error)
    writer = ShardWriter(Path(folder), f"c{client}")
    try:
        with (Path(folder) / f"c{client}.pickle").open("wb") as file:
            # One pickler for all, so that what they share stays shared.
            pickler = Salvager(file, shell.user_ns, writer)
            for name, value in values.items():
                pickler.root = name
                pickler.dump((name, value))
    finally:
        writer.close()
    tensors = {name: [pickler.keys[tensor] for tensor in touched[name]] for name in values}
    return {"kept": list(values), "lost": lost, "tensors": tensors}


def user_names(shell: Any) -> list[str]:
    """Return the names that the user made."""
    hidden = getattr(shell, "user_ns_hidden", {})

    def own(name: object, value: Any) -> bool:
        # A cell may put any key into its globals.
        if not isinstance(name, str) or name.startswith("_") or name in NOT_KEPT:
            return False
        return not (name in hidden and hidden[name] is value)

    return [name for name, value in list(shell.user_ns.items()) if own(name, value)]


def _try(shell: Any, value: Any) -> list[int]:
    """Pickle `value` by itself, to nowhere; return the identities of the DTensors in it."""
    pickler = Salvager(_Nowhere(), shell.user_ns, None)
    pickler.dump(value)
    return list(pickler.keys)


def _why(value: Any, error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(value).__name__} cannot be saved: {text or type(error).__name__}"


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


class Salvager(ArrayPickler):
    """A pickler that knows DTensor's values, and that functions of a notebook belong to its namespace.

    Parameters
    ----------
    file : binary file
    namespace : dict
        The shell's.
    writer : ShardWriter or None
        Where shards and buffers go; None only tries.
    """

    def __init__(self, file: Any, namespace: dict[str, Any], writer: ShardWriter | None) -> None:
        super().__init__(file, self._buffer)
        self._namespace = namespace
        self._writer = writer
        #: The key of each DTensor and DVariable that was met, by its identity.
        self.keys: dict[int, str] = {}
        self._by_value: type | None = None
        self.root = ""

    def _buffer(self, buffer: memoryview) -> None:
        if self._writer is not None:
            self._writer.buffer(buffer)

    def reducer_override(self, value: Any) -> Any:
        """Return how `value` is made again, or NotImplemented for pickle's own way."""
        import tensorflow as tf
        from tensorflow.experimental import dtensor

        if isinstance(value, dtensor.Mesh):
            return constructors.make_mesh, (mesh_dims(value), value.device_type(), value.name)
        if isinstance(value, dtensor.Layout):
            return constructors.make_layout, (tuple(value.sharding_specs), value.mesh)
        if isinstance(value, tf.Variable) and getattr(value, "layout", None) is not None:
            key = self._store(value, value.read_value, value.layout)
            return constructors.make_dvariable, (key, value.trainable, value.name.partition(":")[0])
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy") and dtensor.is_dtensor(value):
            return constructors.make_dtensor, (self._store(value, lambda: value, dtensor.fetch_layout(value)),)
        if isinstance(value, tf.types.experimental.PolymorphicFunction):
            return self._tf_function(value)
        if isinstance(value, types.FunctionType) and value.__globals__ is self._namespace:
            return self._function(value)
        if isinstance(value, type) and value.__module__ == "__main__" and value is not self._by_value:
            return self._class(value)
        return super().reducer_override(value)

    def _store(self, owner: Any, read: Callable[[], Any], layout: Any) -> str:
        """Write the local shards of a DTensor, and return its key, which is the same on all clients."""
        key = self.keys[id(owner)] = f"{self.root}/{len(self.keys)}"
        # Read in a try as well: the result of an aborted operation looks like any other until then.
        stored, parts = read_parts(read, layout)
        if self._writer is not None:
            self._writer.tensor(key, stored, parts)
        return key

    @staticmethod
    def _tf_function(value: Any) -> Any:
        options = {
            "input_signature": getattr(value, "input_signature", None),
            "jit_compile": getattr(value, "_jit_compile", None),
            "reduce_retracing": getattr(value, "_reduce_retracing", False),
        }
        return constructors.make_tf_function, (value.python_function, options)

    @staticmethod
    def _function(value: types.FunctionType) -> Any:
        """Reduce a function of the notebook: its globals are the namespace, whatever that will hold then."""
        code = marshal.dumps(value.__code__)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        state = {
            "defaults": value.__defaults__,
            "keywords": value.__kwdefaults__,
            "cells": cells,
            "dict": value.__dict__,
            "annotations": value.__annotations__,
            "qualname": value.__qualname__,
            "doc": value.__doc__,
            # AutoGraph and tracebacks look for the source of a cell, whose process will be gone.
            "source": linecache.getlines(value.__code__.co_filename),
        }
        made = (constructors.new_function, (code, value.__name__, len(cells)))
        return (*made, state, None, None, constructors.fill_function)

    def _class(self, value: type) -> Any:
        """Reduce a class of the notebook by its name, with its definition for where the name is not bound."""
        file = io.BytesIO()
        pickler = Salvager(file, self._namespace, None)
        pickler._by_value = value
        pickler.dump(value)
        return constructors.make_class, (value.__qualname__, file.getvalue())
