"""What this client's names hold: shapes, layouts, and on request their values, without a collective."""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..shards import mesh_dims
from ..state import MeshState
from ..variables import HeatState, Kind, Range, VariableState, part_of
from .keeping.salvaging import user_names

#: Entries of a list or dict, and tensors of a module or model, that are looked at.
MANY = 2000

#: Lists and dicts within one variable that are looked into.
_WALK = 200

#: Rows and columns of a heat map, at most.
GRID = 24

#: Elements of an array that are compared between clients: those at even distances.
_SAMPLE = 4096

#: Bytes of a tensor from which on clients are not compared by its values.
_LARGE = 1 << 20

_TEXT = 120


def describe(shell: Any, names: Sequence[str] | None, *, values: bool = False) -> dict[str, Any]:
    """Describe the shell's variables `names`; all of the user's own for None.

    Parameters
    ----------
    values : bool
        Whether to read the values of the shards that are here, for heat maps.

    Returns
    -------
    dict
        ``variables``: a list of `VariableState` as JSON, and ``missing``: names that there are not.
    """
    namespace = shell.user_ns
    wanted = [name for name in user_names(shell) if _interesting(namespace.get(name))] if names is None else names
    found, missing = [], []
    for name in wanted:
        try:
            value = _look_up(namespace, name)
        except LookupError:
            missing.append(name)
        else:
            found.append(asdict(describe_value(name, value, values=values)))
    return {"variables": found, "missing": missing}


def _interesting(value: Any) -> bool:
    return not isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type))


def _look_up(namespace: Mapping[str, Any], name: str) -> Any:
    """Return what `name` holds: a variable, or an attribute of one (``model.kernel``).

    Raises
    ------
    LookupError
        If there is none.
    """
    first, *rest = name.split(".")
    value = namespace[first]
    for part in rest:
        try:
            value = getattr(value, part)
        except AttributeError:
            raise LookupError(name) from None
    return value


def describe_value(name: str, value: Any, *, values: bool = False) -> VariableState:
    """Describe one value; a group of tensors with all of them."""
    try:
        return _describe(name, value, values=values)
    except Exception as error:  # noqa: BLE001 - any object's own attributes may raise anything
        why = f"cannot be looked into: {type(error).__name__}: {error}"
        return VariableState(name, "value", type(value).__name__, text=why[:_TEXT])


def _describe(name: str, value: Any, *, values: bool) -> VariableState:
    members = list(_members(value, "", set()))
    if not members:
        return _single(name, value, values=values)
    group = VariableState(name, "group", type(value).__name__, text=_group_text(value, len(members)))
    group.parts = [_single(way, member, values=values) for way, member in members[:MANY]]
    sizes = [part.nbytes or 0 for part in group.parts]
    group.nbytes = sum(sizes)
    return group


def _members(value: Any, way: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in a list, dict, tf.Module or model, with the way to each; each container once.

    Of a large container of something else a part is looked at.
    """
    import tensorflow as tf

    if isinstance(value, (int, float, str, bytes)) or id(value) in seen or len(seen) > _WALK:
        return
    if way and _is_tensor(value):
        yield way, value
    elif isinstance(value, tf.Module) or (hasattr(value, "trainable_weights") and hasattr(value, "weights")):
        for variable, path in _variables(value):
            yield f"{way}.{path}", variable
    elif isinstance(value, Mapping):
        seen.add(id(value))
        for key in list(itertools.islice(value, MANY)):
            yield from _members(value[key], f"{way}[{key!r}]", seen)
    elif isinstance(value, (list, tuple)):
        seen.add(id(value))
        for position, member in enumerate(value[:MANY]):
            yield from _members(member, f"{way}[{position}]", seen)


def _variables(module: Any) -> list[tuple[Any, str]]:
    """Return the variables of a module or model with their paths in it."""
    weights = getattr(module, "weights", None)
    if isinstance(weights, (list, tuple)) and weights:
        # A Keras model: its weights' own paths are what Keras itself prints.
        return [(weight, getattr(weight, "path", None) or weight.name.partition(":")[0]) for weight in weights]
    flat = module._flatten(predicate=_is_tensor, with_path=True)  # noqa: SLF001 - what tf.Module.variables uses
    return [(variable, ".".join(str(step) for step in path)) for path, variable in flat]


def _is_tensor(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, (tf.Variable, np.ndarray)) or tf.is_tensor(value) or _keras_value(value) is not None


def _keras_value(value: Any) -> Any:
    """Return the TensorFlow variable inside a Keras 3 one; None for anything else."""
    inner = getattr(value, "value", None)
    import tensorflow as tf

    return inner if isinstance(inner, tf.Variable) else None


def _single(name: str, value: Any, *, values: bool) -> VariableState:
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    kind = type(value).__name__
    if not isinstance(value, (tf.Variable, np.ndarray)):
        inner = _keras_value(value)
        value = value if inner is None else inner
    if isinstance(value, dtensor.Mesh):
        mesh = _mesh(value, name)
        # Not its own text, in which each client lists its own devices.
        return VariableState(name, "mesh", kind, mesh=mesh, digest=f"{mesh.dims} {mesh.devices}")
    if isinstance(value, dtensor.Layout):
        specs = list(value.sharding_specs)
        return VariableState(name, "layout", kind, specs=specs, mesh=_mesh(value.mesh))
    layout = _layout(value)
    if layout is not None:
        state = _array_state(name, "dtensor", kind, value)
        state.specs, state.mesh = list(layout.sharding_specs), _mesh(layout.mesh)
        if values:
            state.heat = _dtensor_heat(value, layout, state)
        return state
    if isinstance(value, (tf.Variable, np.ndarray)) or (tf.is_tensor(value) and hasattr(value, "numpy")):
        state = _array_state(name, "array" if isinstance(value, np.ndarray) else "tensor", kind, value)
        # A large tensor's bytes are fetched for its picture alone.
        array = _as_array(value) if values or state.kind == "array" or (state.nbytes or 0) < _LARGE else None
        if array is not None:
            state.digest = _digest(array)
            if values:
                whole = [(0, size) for size in array.shape]
                state.heat = [heat] if (heat := _heat(array, whole)) else []
        return state
    text = _short(value)
    return VariableState(name, "value", kind, nbytes=None, text=text, digest=_value_digest(value, text))


def _array_state(name: str, kind: Kind, type_name: str, value: Any) -> VariableState:
    import tensorflow as tf

    shape = value.shape.as_list() if isinstance(value.shape, tf.TensorShape) else list(value.shape)
    dtype = value.dtype.name
    size = getattr(value.dtype, "size", None) or getattr(value.dtype, "itemsize", 0)
    known = all(axis is not None for axis in shape)
    nbytes = math.prod(shape) * size if known and size else None
    return VariableState(name, kind, type_name, shape=shape if known else None, dtype=dtype, nbytes=nbytes)


def _layout(value: Any) -> Any:
    """Return a DTensor's or DVariable's layout; None for what is neither."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    if isinstance(value, tf.Variable):
        layout = getattr(value, "layout", None)
        return layout if isinstance(layout, dtensor.Layout) else None
    if tf.is_tensor(value) and hasattr(value, "numpy") and dtensor.is_dtensor(value):
        return dtensor.fetch_layout(value)
    return None


def meshes(shell: Any) -> list[MeshState]:
    """Return the meshes that the shell's names hold, each once, under its first name."""
    layouts = sys.modules.get("tensorflow.dtensor.python.layout")
    if layouts is None:
        return []
    found: dict[int, MeshState] = {}
    for name, value in list(shell.user_ns.items()):
        if isinstance(value, layouts.Mesh) and not name.startswith("_") and id(value) not in found:
            found[id(value)] = _mesh(value, name)
    return list(found.values())


def _mesh(mesh: Any, name: str = "") -> MeshState:
    ids = [int(number) for number in np.ravel(mesh.global_device_ids())]
    dims = dict(mesh_dims(mesh))
    plain = ids == list(range(len(ids)))
    return MeshState(name or mesh.name or "mesh", dims, mesh.device_type(), [] if plain else ids)


def _as_array(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except Exception:  # noqa: BLE001 - a variable that is not initialised, a tensor of a kind without an array
        return None


def _dtensor_heat(value: Any, layout: Any, state: VariableState) -> list[HeatState]:
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    tensor = value.read_value() if isinstance(value, tf.Variable) else value
    dims = dict(mesh_dims(layout.mesh))
    shape = state.shape or []
    found: dict[tuple[Range, ...], HeatState] = {}
    for place, part in zip(layout.mesh.local_device_locations(), dtensor.unpack(tensor), strict=True):
        ranges = part_of(shape, state.specs or (), dims, place)
        array = _as_array(part)
        if array is not None and ranges not in found and (heat := _heat(array, list(ranges))):
            found[ranges] = heat
    return list(found.values())


def _heat(array: np.ndarray, ranges: list[Range]) -> HeatState | None:
    """Average a part of a tensor over blocks: its last two axes, the others as one."""
    try:
        numbers = np.abs(array) if np.iscomplexobj(array) else array.astype(np.float64)
    except (TypeError, ValueError):
        return None
    if not numbers.size:
        return None
    finite = numbers[np.isfinite(numbers)]
    rows = numbers.reshape(1, -1) if numbers.ndim < 2 else numbers
    rows = rows.reshape(-1, *rows.shape[-2:]).mean(axis=0)
    grid = [
        [float(cell) if np.isfinite(cell := block.mean()) else None for block in _blocks(band, 1)]
        for band in _blocks(rows, 0)
    ]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
    return HeatState(ranges, grid, low, high)


def _blocks(array: np.ndarray, axis: int) -> list[np.ndarray]:
    return np.array_split(array, min(GRID, array.shape[axis]), axis=axis)


def _digest(array: np.ndarray) -> str:
    """Return a text that is equal where arrays are alike, from elements at even distances."""
    flat = array.reshape(-1)
    sample = flat[:: max(1, flat.size // _SAMPLE)]
    data = repr(sample.tolist()).encode() if sample.dtype.hasobject else np.ascontiguousarray(sample).tobytes()
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]


def _value_digest(value: Any, text: str) -> str:
    """Return the text of a plain value; nothing for objects, whose texts hold addresses."""
    plain = isinstance(
        value, (int, float, complex, str, bytes, bool, type(None), list, tuple, dict, set, frozenset)
    )
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16] if plain and text else ""


def _short(value: Any) -> str:
    """Return a short text of a value, whatever its own repr does."""
    if isinstance(value, (str, bytes)):
        value = value[: _TEXT * 2]
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > 100:
        return f"{type(value).__name__} of {len(value)}"
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # noqa: BLE001 - a user's repr may raise anything
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    # A lone surrogate cannot travel.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def _group_text(value: Any, count: int) -> str:
    more = f", {MANY} of them shown" if count > MANY else ""
    return f"{type(value).__name__} of {count} tensor{'s' * (count != 1)}{more}"
