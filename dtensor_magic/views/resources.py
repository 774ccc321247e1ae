"""The division of a node as text."""

from __future__ import annotations

from ..resources import ResourcePlan, Share
from ..state import client_ranges
from .columns import table
from .text import size

COLUMNS = ("process", "accelerators", "cores", "threads", "memory")


def resource_table(plan: ResourcePlan, *, memory_limited: bool = False) -> str:
    """Return a line on the node, a table of its processes, and a line on what is set and what is only told.

    Parameters
    ----------
    plan : ResourcePlan
    memory_limited : bool
        Whether the processes are held to their memory.
    """
    node = plan.node
    count = len(node.accelerators)
    accelerators = f"{count} {node.device_type}{'s' * (count != 1)}, " if count else ""
    head = f"this node: {accelerators}{node.cores} core{'s' * (node.cores != 1)}, {size(node.memory)}"
    kind = node.device_type if count else ""
    rows = [COLUMNS, *(_row(share, kind) for share in plan.shares)]
    return "\n".join([head, "", *table(rows), "", _told(plan, memory_limited=memory_limited)])


def _row(share: Share, kind: str) -> tuple[str, ...]:
    names = share.accelerators
    numbers = all(name.isdigit() for name in names)
    listed = client_ranges([int(name) for name in names]) if numbers else ", ".join(names)
    return (
        f"{share.role} {share.number}",
        f"{kind} {listed}" if names else "none",
        f"{share.cores} ({client_ranges(share.cpus)})" if share.cpus else str(share.cores),
        "its own choice" if share.threads is None else str(share.threads),
        size(share.memory),
    )


def _told(plan: ResourcePlan, *, memory_limited: bool) -> str:
    if len(plan.shares) == 1:
        return "It has the node to itself; nothing is limited."
    done = ["threads"]
    if plan.node.accelerators:
        done.insert(0, "accelerators")
    told: list[str] = []
    (done if all(share.cpus for share in plan.shares) else told).append("cores")
    (done if memory_limited else told).append("memory")
    return f"Set at the start: {', '.join(done)}." + (f" Told, not limited: {', '.join(told)}." if told else "")
