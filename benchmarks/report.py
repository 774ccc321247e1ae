"""What the benchmarks print and keep: aligned tables, bars met or missed, ``results/NAME.md`` and ``.json``."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

_PACKAGES = ("dtensor-magic", "tensorflow-cpu", "tensorflow", "ipykernel", "ipyparallel")


@dataclass(frozen=True)
class Bar:
    """A promise, and whether the figures keep it.

    Attributes
    ----------
    what : str
        For instance "warm start at 8 clients, times faster than ipyparallel".
    value, limit : float
    at_least : bool
        Whether the value should be at least the limit, or at most.
    """

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it is kept."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        side = "at least" if self.at_least else "at most"
        return f"{'met   ' if self.met else 'MISSED'}  {self.what}: {self.value:.2f}, bar: {side} {self.limit:g}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned table, right-aligned but for the first column; it is Markdown too."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in [lines[0], rule, *lines[1:]]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def machine() -> str:
    """Say on what, and with which versions, the figures were made."""
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            # One of TensorFlow's builds is there, not all; ipyparallel may be skipped.
            continue
    load = os.getloadavg()[0]
    return (
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {len(os.sched_getaffinity(0))} cores "
        f"(load {load:.1f} at the end), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )


def publish(name: str, title: str, sections: Iterable[str], bars: Sequence[Bar], data: dict[str, Any]) -> None:
    """Print the figures and write them to ``results/``.

    Parameters
    ----------
    name : str
        The files' name.
    title : str
    sections : iterable of str
        Tables and paragraphs.
    bars : sequence of Bar
    data : dict
        The figures, for the JSON file.
    """
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    verdicts = "\n".join(str(bar) for bar in bars) or "no bar was measured"
    parts = list(sections)
    print("\n\n".join(["", title, *parts, verdicts]))
    RESULTS.mkdir(exist_ok=True)
    text = "\n\n".join([f"# {title}", f"`{command}`", machine(), *parts, f"```text\n{verdicts}\n```"])
    (RESULTS / f"{name}.md").write_text(text + "\n", "utf-8")
    kept = {
        "command": command,
        "machine": machine(),
        **data,
        "bars": [{**asdict(bar), "met": bar.met} for bar in bars],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def counts(text: str) -> list[int]:
    """Read a list of client counts: ``1,2,4,8``."""
    return [int(part) for part in text.split(",")]
