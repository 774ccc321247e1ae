"""Where each client stands, as text: Python frames with source lines, or all threads where Python is stuck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .clients import ClientGroup


async def stack_text(group: ClientGroup, client: int) -> str:
    """Return client `client`'s stack; the frames of the cell come first."""
    if client in group.exits:
        return group.exits[client]
    report = await group.report(client)
    if report is not None:
        return _python(report)
    native = await group.native_stacks(client)
    return f"the interpreter does not answer; by a signal, the threads' innermost frames are:\n{native.rstrip()}"


def _python(report: Mapping[str, Any]) -> str:
    frames = report["frames"]
    first = next((position for position, frame in enumerate(frames) if frame["cell"]), None)
    if first is None:
        return "idle: no cell runs"
    head = "waits in a collective" if report["waiting"] else "is idle" if report["idle"] else "computes"
    lines = [f"{head}:"]
    for frame in frames[first:]:
        where = "cell" if frame["cell"] else frame["file"]
        lines.append(f"  {where}, line {frame['line']}, in {frame['function']}")
        if frame["source"]:
            lines.append(f"    {frame['source']}")
    return "\n".join(lines)
