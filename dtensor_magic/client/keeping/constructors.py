"""What saved variables are made by, in a fresh client. Pickles name these functions."""

from __future__ import annotations

import linecache
import marshal
import pickle
import types
from typing import Any

from ...shards import ShardReader, StoredTensor, mesh_dims
from ...variables import part_of


class Restoring:
    """The restore that is under way in this process.

    Attributes
    ----------
    namespace : dict
        The shell's.
    reader : ShardReader
    donor : str
        The name of the files whose pickle is read.
    missing : dict of str to str
        Why a DTensor could not be made, by its key. None stands in its place, and whatever holds it is dropped.
    """

    def __init__(self, namespace: dict[str, Any], reader: ShardReader, donor: str) -> None:
        self.namespace = namespace
        self.reader = reader
        self.donor = donor
        self.missing: dict[str, str] = {}
        self._meshes: dict[Any, Any] = {}
        self._classes: dict[str, type] = {}

    def mesh(self, dims: tuple[tuple[str, int], ...], device_type: str, name: str) -> Any:
        """Return a mesh of those dimensions over the present devices; the present `mesh`, where none fits."""
        from tensorflow.experimental import dtensor

        key = (dims, device_type, name)
        if key not in self._meshes:
            present = self.namespace.get("mesh")
            devices = len(dtensor.local_devices(device_type)) * dtensor.num_clients()
            size = 1
            for _, count in dims:
                size *= count
            if isinstance(present, dtensor.Mesh) and mesh_dims(present) == dims:
                self._meshes[key] = present
            elif size == devices:
                self._meshes[key] = dtensor.create_distributed_mesh(
                    list(dims), mesh_name=name, device_type=device_type
                )
            elif isinstance(present, dtensor.Mesh):
                self._meshes[key] = present
            else:
                text = ",".join(f"{dim}={count}" for dim, count in dims)
                raise LookupError(f"its mesh {text} does not fit {devices} devices, and no --mesh says which does")
        return self._meshes[key]

    def klass(self, name: str, definition: bytes) -> type:
        """Return the class `name`: the namespace's own, or else the one that was saved."""
        bound = self.namespace.get(name)
        if isinstance(bound, type):
            return bound
        if name not in self._classes:
            loaded: type = pickle.loads(definition)  # noqa: S301 - our own client wrote it, into a private folder
            self._classes[name] = loaded
        return self._classes[name]


current: Restoring | None = None


def _restoring() -> Restoring:
    assert current is not None
    return current


def make_mesh(dims: tuple[tuple[str, int], ...], device_type: str, name: str) -> Any:
    """Make a mesh."""
    return _restoring().mesh(dims, device_type, name)


def fitting_specs(specs: tuple[str, ...], mesh: Any, shape: tuple[int, ...] | None = None) -> list[str]:
    """Return the sharding specs for `mesh`: what it cannot hold is unsharded."""
    from tensorflow.experimental import dtensor

    sizes = dict(mesh_dims(mesh))
    return [
        spec if spec in sizes and (shape is None or shape[axis] % sizes[spec] == 0) else dtensor.UNSHARDED
        for axis, spec in enumerate(specs)
    ]


def make_layout(specs: tuple[str, ...], mesh: Any) -> Any:
    """Make a layout."""
    from tensorflow.experimental import dtensor

    return dtensor.Layout(fitting_specs(specs, mesh), mesh)


def make_dtensor(key: str) -> Any:
    """Make a DTensor of this client's parts, from the shards that were saved."""
    restoring = _restoring()
    try:
        return _assemble(restoring, key)
    except LookupError as error:
        restoring.missing[key] = str(error)
        return None


def _assemble(restoring: Restoring, key: str) -> Any:
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    stored: StoredTensor = restoring.reader.tensor(restoring.donor, key)
    mesh = restoring.mesh(stored.mesh, stored.device_type, stored.mesh_name)
    specs = fitting_specs(stored.specs, mesh, stored.shape)
    parts = []
    made: dict[Any, Any] = {}
    for location in mesh.local_device_locations():
        ranges = part_of(stored.shape, specs, dict(mesh_dims(mesh)), location)
        if ranges not in made:
            made[ranges] = tf.constant(restoring.reader.part(stored, key, ranges))
        parts.append(made[ranges])
    return dtensor.pack(parts, dtensor.Layout(specs, mesh))


def make_dvariable(key: str, trainable: bool, name: str) -> Any:
    """Make a DVariable."""
    from tensorflow.experimental import dtensor

    value = make_dtensor(key)
    return None if value is None else dtensor.DVariable(value, trainable=trainable, name=name)


def make_tf_function(function: Any, options: dict[str, Any]) -> Any:
    """Make a ``tf.function``, which traces anew."""
    import tensorflow as tf

    return tf.function(function, **options)


def make_class(name: str, definition: bytes) -> type:
    """Make a class of the notebook."""
    return _restoring().klass(name, definition)


def new_function(code: bytes, name: str, cells: int) -> types.FunctionType:
    """Make a function of the notebook, still without what it holds."""
    closure = tuple(types.CellType() for _ in range(cells))
    return types.FunctionType(marshal.loads(code), _restoring().namespace, name, None, closure)  # noqa: S302 - as above


def fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    """Give a function what it holds."""
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["keywords"]
    function.__dict__.update(state["dict"])
    function.__annotations__ = state["annotations"]
    function.__qualname__ = state["qualname"]
    function.__doc__ = state["doc"]
    function.__module__ = "__main__"
    file = function.__code__.co_filename
    if state["source"] and file not in linecache.cache:
        lines = state["source"]
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    for cell, value in zip(function.__closure__ or (), state["cells"], strict=True):
        cell.cell_contents = value
