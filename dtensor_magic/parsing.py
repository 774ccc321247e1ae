"""Read what users write in a magic's line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from IPython.core.magic_arguments import argument

from .errors import SpecError

_OPTION = re.compile(r"\s*(-{1,2}[A-Za-z][A-Za-z-]*)(?:=|\s+|$)")
_VALUE = re.compile(r"\"([^\"]*)\"(?:\s+|$)|'([^']*)'(?:\s+|$)|(\S+)(?:\s+|$)")


def name_argument() -> Callable[[Any], Any]:
    """Return the option that most magics share."""
    decorator: Callable[[Any], Any] = argument(
        "--name", help="the cluster's name; without it the one that was started last"
    )
    return decorator


def parse_clients(text: str) -> tuple[int, ...]:
    """Read client ids: ``0,2-3``.

    Raises
    ------
    SpecError
        For anything else.
    """
    clients: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
        if match is None:
            raise SpecError(f"on: {part.strip()!r} is not a client or a range of them; write for instance 0,2-3.")
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last < first:
            raise SpecError(f"on: {part.strip()!r} runs backwards; write {last}-{first}.")
        if last - first > 100_000:
            raise SpecError(f"on: {part.strip()!r} are more clients than there can be.")
        clients.update(range(first, last + 1))
    return tuple(sorted(clients))


def parse_names(text: str) -> list[str]:
    """Read variable names: ``w,b``, or ``all``.

    Raises
    ------
    SpecError
        For what is no name.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name.isidentifier():
            raise SpecError(f"keep: {name!r} is not a name; write for instance w,b, or all.")
    return names


def parse_env(items: Iterable[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` items.

    Raises
    ------
    SpecError
        For an item without ``=`` or without a name.
    """
    env: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise SpecError(f"env: {item!r} is not NAME=VALUE.")
        env[name] = value
    return env


def split_cell_options(
    line: str, known: Sequence[str], flags: Sequence[str], magic: str
) -> tuple[dict[str, str], str]:
    """Split a line into the options at its front and the rest, which stays as it was written.

    Parameters
    ----------
    known : sequence of str
        Options that take a value.
    flags : sequence of str
        Options that take none.

    Returns
    -------
    options : dict of str to str
        A flag's value is empty.
    rest : str

    Raises
    ------
    SpecError
        For an unknown option, or one without its value.
    """
    options: dict[str, str] = {}
    rest = line.strip()
    while (match := _OPTION.match(rest)) is not None:
        option = match.group(1)
        if option in flags:
            options[option] = ""
            rest = rest[match.end() :]
            continue
        if option not in known:
            near = difflib.get_close_matches(option, [*known, *flags], n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join([*known, *flags])}."
            raise SpecError(f"{magic}: unknown option {option}; {hint}")
        value = _VALUE.match(rest, match.end())
        if value is None:
            raise SpecError(f"{magic}: {option} needs a value.")
        options[option] = next(group for group in value.groups() if group is not None)
        rest = rest[value.end() :]
    return options, rest


def parse_whole(text: str | None, what: str, right: str, *, least: int | None = 1) -> int | None:
    """Read a whole number of at least `least`; None stays None.

    Raises
    ------
    SpecError
        That begins with `what` and says that it is not `right`.
    """
    if text is None:
        return None
    if not re.fullmatch(r"[+-]?[0-9]+", text) or (least is not None and int(text) < least):
        raise SpecError(f"{what}: {text!r} is not {right}.")
    return int(text)


def parse_time(text: str | None, what: str = "timeout", unit: str = "seconds") -> float | None:
    """Read a time above 0, in `unit`; None stays None.

    Raises
    ------
    SpecError
        That begins with `what`.
    """
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise SpecError(f"{what}: {text!r} is not a time; give {unit} above 0.")
    return number
