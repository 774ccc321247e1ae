"""How a DTensor looks as a cell's last value: what it is, and what this client holds of it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..pickling import reason
from ..shards import StoredTensor, bytes_of, same_bytes
from ..variables import Range
from .parts import read_parts, reader_of

#: Seconds that values may take to be there: whatever computes them may itself wait for a peer that never comes.
PATIENCE = 3.0

#: Shards that are shown.
_SHARDS = 8


def register_formatters(shell: Any) -> None:
    """Have `shell` show DTensors and DVariables so; all other tensors look as TensorFlow shows them."""
    from tensorflow.experimental import dtensor
    from tensorflow.python.framework import ops

    formatter = shell.display_formatter.formatters["text/plain"]
    for kind in (ops.EagerTensor, dtensor.DVariable):
        formatter.for_type(kind, _pretty)


def _pretty(value: Any, printer: Any, cycle: bool) -> None:  # noqa: ARG001 - IPython's signature
    lines = (describe(value) or repr(value)).splitlines()
    for number, line in enumerate(lines):
        if number:
            printer.break_()
        printer.text(line)


def describe(value: Any) -> str:
    """Return the text for a DTensor or DVariable; empty for anything else.

    Nothing in it names a device or a process, so that clients which hold the same say the same. It runs no
    collective and raises nothing: what cannot be read is said.
    """
    try:
        found = reader_of(value)
    except Exception:  # noqa: BLE001 - a value that cannot even be asked looks as TensorFlow shows it
        return ""
    if found is None:
        return ""
    read, layout = found
    kind = "DVariable" if hasattr(value, "read_value") else "DTensor"
    dims = ", ".join(f"{name}={layout.mesh.dim_size(name)}" for name in layout.mesh.dim_names)
    shape = tuple(value.shape.as_list())
    head = f"{kind} {shape} {value.dtype.name} [{', '.join(layout.sharding_specs)}] on {dims}"
    return "\n".join([head, *_shards(read, layout)])


def _shards(read: Any, layout: Any) -> list[str]:
    """Return a line or more for each distinct part that this client holds."""
    result: list[tuple[StoredTensor, list[tuple[tuple[Range, ...], np.ndarray]]]] = []
    errors: list[Exception] = []

    def look() -> None:
        try:
            result.append(read_parts(read, layout))
        except Exception as error:  # noqa: BLE001 - it is shown
            errors.append(error)

    looking = threading.Thread(target=look, daemon=True, name="dtensor-look")
    looking.start()
    looking.join(PATIENCE)
    if errors:
        return [f"  its values cannot be read: {reason(errors[0])}"]
    if not result:
        return [f"  its values are not there after {PATIENCE:g} s: they are being computed, or wait for a peer"]
    stored, parts = result[0]
    distinct: list[tuple[tuple[Range, ...], np.ndarray]] = []
    for ranges, part in parts:
        if not any(ranges == other and same_bytes(bytes_of(part), bytes_of(known)) for other, known in distinct):
            distinct.append((ranges, part))
    lines = [line for ranges, part in distinct[:_SHARDS] for line in _lines(stored, ranges, part)]
    more = len(distinct) - _SHARDS
    return lines + (
        [f"  and {more} more part{'s' * (more > 1)} on this client's other devices"] if more > 0 else []
    )


def _lines(stored: StoredTensor, ranges: tuple[Range, ...], part: np.ndarray) -> list[str]:
    whole = all(first == 0 and end == size for (first, end), size in zip(ranges, stored.shape, strict=True))
    label = "all" if whole else "[" + ", ".join(f"{first}:{end}" for first, end in ranges) + "]"
    text = np.array2string(part, threshold=20, edgeitems=2, precision=4, separator=", ")
    lead = f"  {label} = "
    return (lead + text.replace("\n", "\n" + " " * len(lead))).split("\n")
