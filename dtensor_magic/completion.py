"""Tab in the magics' own lines: options and their values."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from .cluster import OUTPUT_MODES, registry
from .devices import DEVICE_TYPES

_CELL_OPTIONS = ["--name", "--no-wait", "--on", "--output", "--setup", "--timeout"]


def _names() -> list[str]:
    return [cluster.name for cluster in registry.all()]


def _client_ids() -> list[str]:
    current = registry.current()
    return [str(client) for client in current.clients] if current is not None else []


_VALUES: dict[str, Callable[[], list[str]]] = {
    "--output": lambda: list(OUTPUT_MODES),
    "--start-method": lambda: ["fork", "exec"],
    "--parallel-executor": lambda: ["pw"],
    "--keep": lambda: ["all"],
    "--name": _names,
    "--on": _client_ids,
}


def register_completers(shell: Any, magics: Any) -> None:
    """Have `shell` complete the lines of `magics`."""
    for name in _magic_names(magics):
        for prefix in ("%", "%%", ""):
            shell.set_hook("complete_command", _completer(magics, name), str_key=prefix + name)


def unregister_completers(shell: Any) -> None:
    """Undo :func:`register_completers`."""
    table = shell.strdispatchers.get("complete_command")
    if table is not None:
        for key in [key for key in table.strs if key.lstrip("%").startswith("dtensor")]:
            del table.strs[key]


def _magic_names(magics: Any) -> set[str]:
    return {name for names in magics.magics.values() for name in names}


def _completer(magics: Any, name: str) -> Callable[[Any, Any], list[str]]:
    def complete(_shell: Any, event: Any) -> list[str]:
        return candidates(magics, name, event.line)

    return complete


def candidates(magics: Any, name: str, line: str) -> list[str]:
    """Return what may stand at the end of `line`, a line of magic `name`."""
    words = _words(line)
    at_word = not line[-1:].isspace()
    last = words[-1] if at_word and len(words) > 1 else ""
    before = words[-2] if last and len(words) > 2 else words[-1] if not last and len(words) > 1 else ""
    option, equals, value = last.partition("=")
    if equals and option in _VALUES:
        return [f"{option}={found}" for found in _VALUES[option]() if found.startswith(value)]
    if before in _VALUES:
        return [found for found in _VALUES[before]() if found.startswith(last)]
    options = _CELL_OPTIONS if name == "dtensor" else _options(magics, name)
    found = [option for option in options if option.startswith(last) and option not in words]
    if name == "dtensor_init" and not any(word.upper() in DEVICE_TYPES for word in words[1:]):
        found += [kind for kind in DEVICE_TYPES if kind.startswith(last.upper())]
    if name == "dtensor_logs" and not last.startswith("-"):
        found += _client_ids()
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        # An open quote: the words before it are what there is.
        return line.split()


def _options(magics: Any, name: str) -> list[str]:
    parser = getattr(getattr(magics, name), "parser", None)
    actions = parser._actions if parser is not None else []  # noqa: SLF001 - argparse has no public listing
    return [option for action in actions for option in action.option_strings if option.startswith("--")]
