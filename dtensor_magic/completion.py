"""Tab in the magics' own lines: options and their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

from .cluster import OUTPUT_MODES, registry
from .devices import DEVICE_TYPES
from .errors import DTensorMagicError
from .platforms.detect import READERS
from .variables import over_clients

_CELL_OPTIONS = ["--collect", "--name", "--no-wait", "--on", "--output", "--setup", "--timeout"]

_LINE = re.compile(r"\s*%{1,2}(dtensor\w*)\s.*")

_IDENTIFIER = "dtensor_magic.LineMatcher"


def _names() -> list[str]:
    return [cluster.name for cluster in registry.all()]


def _client_ids() -> list[str]:
    current = registry.current()
    return [str(client) for client in current.clients] if current is not None else []


def _variables(magic: str) -> list[str]:
    """Return the names on the clients that a picture can be drawn of."""
    current = registry.current()
    if current is None:
        return []
    try:
        if magic == "dtensor_mesh":
            return [mesh.name for mesh in current.state(sample=False).meshes]
        return [one.name for one in over_clients(current.describe()) if one.first.kind not in ("value", "mesh")]
    except DTensorMagicError:
        # A client that does not answer now has no names to offer.
        return []


_VALUES: dict[str, Callable[[], list[str]]] = {
    "--output": lambda: list(OUTPUT_MODES),
    "--start-method": lambda: ["fork", "exec"],
    "--parallel-executor": lambda: ["pw"],
    "--from": lambda: list(READERS),
    "--keep": lambda: ["all"],
    "--name": _names,
    "--on": _client_ids,
}


class LineMatcher:
    """Completes lines that are one of our magics'.

    Parameters
    ----------
    shell : InteractiveShell
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def hook(self, _shell: Any, event: Any) -> list[str]:
        """Answer IPython's ``complete_command`` hook."""
        match = _LINE.fullmatch(event.line)
        return candidates(self._shell, match.group(1), event.line)[1] if match else []

    def match(self, context: Any) -> Any:
        """Answer IPython 8.6's matchers, which may keep all others out: Python names are no options."""
        from IPython.core.completer import SimpleCompletion

        line = context.line_with_cursor[: context.cursor_position]
        match = _LINE.fullmatch(line)
        if match is None:
            return {"completions": []}
        fragment, found = candidates(self._shell, match.group(1), line)
        if not found and match.group(1) == "dtensor":
            # Code, after the options.
            return {"completions": []}
        return {
            "completions": [SimpleCompletion(text=text) for text in found],
            "matched_fragment": fragment,
            "suppress": True,
            "ordered": True,
        }


def register_completers(shell: Any) -> None:
    """Have `shell` complete the lines of our magics."""
    from IPython.core import completer as ipython

    matcher = LineMatcher(shell)
    completer: Any = getattr(shell, "Completer", None)
    # IPython 7 has `custom_matchers` too, but of functions that see no line.
    if hasattr(completer, "custom_matchers") and hasattr(ipython, "context_matcher"):
        # The decorator writes attributes, which a bound method does not take.
        decorate = ipython.context_matcher(identifier=_IDENTIFIER, priority=1000)
        completer.custom_matchers.append(decorate(lambda context: matcher.match(context)))  # noqa: PLW0108
    else:
        shell.set_hook("complete_command", matcher.hook, re_key=r"%{1,2}dtensor")


def unregister_completers(shell: Any) -> None:
    """Undo :func:`register_completers`."""
    completer = getattr(shell, "Completer", None)
    matchers = getattr(completer, "custom_matchers", [])
    matchers[:] = [matcher for matcher in matchers if getattr(matcher, "matcher_identifier", "") != _IDENTIFIER]
    table = shell.strdispatchers.get("complete_command")
    if table is not None:
        for pattern in [pattern for pattern in table.regexs if "dtensor" in pattern.pattern]:
            del table.regexs[pattern]


def candidates(shell: Any, name: str, line: str) -> tuple[str, list[str]]:
    """Return the word at the end of `line`, a line of magic `name`, and what it may be."""
    words = _words(line)
    last = "" if line[-1:].isspace() or len(words) == 1 else words[-1]
    before = words[-2 if last else -1]
    option, equals, value = last.partition("=")
    if equals and option in _VALUES:
        return value, [found for found in _VALUES[option]() if found.startswith(value)]
    if before in _VALUES:
        return last, [found for found in _VALUES[before]() if found.startswith(last)]
    options = _CELL_OPTIONS if name == "dtensor" else _options(shell, name)
    found = [option for option in options if option.startswith(last) and option not in words[:-1]]
    if name == "dtensor_init" and not any(word.upper() in DEVICE_TYPES for word in words[1:]):
        found = [kind for kind in DEVICE_TYPES if kind.startswith(last.upper())] + found
    if name in ("dtensor_layout", "dtensor_mesh") and not last.startswith("-"):
        found = [variable for variable in _variables(name) if variable.startswith(last)] + found
    if name == "dtensor_logs" and not last.startswith("-"):
        found = [client for client in _client_ids() if client.startswith(last)] + found
    if name == "dtensor_push" and not last.startswith("-"):
        hidden = shell.user_ns_hidden
        own = [word for word in shell.user_ns if word not in hidden and not word.startswith("_")]
        # The last of several names that commas stand between.
        done, comma, begun = last.rpartition(",")
        found = [f"{done}{comma}{word}" for word in own if word.startswith(begun)] + found
    return last, found if last or name != "dtensor" else []


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        # An open quote: the words before it are what there is.
        return line.split()


def _options(shell: Any, name: str) -> list[str]:
    parser = getattr(shell.find_line_magic(name), "parser", None)
    actions = parser._actions if parser is not None else []  # noqa: SLF001 - argparse has no public listing
    return [option for action in actions for option in action.option_strings if option != "-h"]
