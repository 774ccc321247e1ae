"""What this process's control groups allow it: a container's share of its host, which no other call tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")

#: Version 1 writes "no limit" as the largest page-aligned number.
_UNLIMITED = 1 << 60


def cpu_quota() -> float | None:
    """Return the CPU time that this process may use, in cores, or None for no limit."""
    quotas = []
    for folder in _folders("cpu"):
        # Version 2 has "quota period" in one file, version 1 a file for each.
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Return the memory that this process and its group may use, in bytes, or None for no limit."""
    limits = []
    for folder in _folders("memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if text.isdigit() and int(text) < _UNLIMITED:
            limits.append(int(text))
    return min(limits, default=None)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of our group and of those above it: each of them may limit us.

    A container may see its own group as the root, or have a path that leads outside what is mounted here; then the
    mount's own folder is what there is.
    """
    for line in _read(_OWN).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = _MOUNT / controller if controllers else _MOUNT
        folder = mount / path.strip("/")
        yield mount
        while folder != mount and mount in folder.parents:
            yield folder
            folder = folder.parent


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        # Another version, or a container that hides it: nothing is known.
        return ""
