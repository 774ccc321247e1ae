"""What the magics share: reading their lines, and finding the cluster that a line means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, parse_argstring

from .cluster import Cluster, registry
from .errors import SpecError

NO_CLUSTER = "no cluster runs; start one with %dtensor_init, for instance %dtensor_init CPU -n 4."

_NAME_HELP = "the cluster's name; without it the one that was started last"


def name_argument() -> Callable[[Any], Any]:
    """Return the option that most magics share."""
    decorator: Callable[[Any], Any] = argument("--name", help=_NAME_HELP)
    return decorator


def parse_line(magic: Any, line: str) -> Any:
    """Parse `line` by the arguments of `magic`.

    Raises
    ------
    SpecError
        For a wrong option: one line that says what is right.
    """
    name = magic.__name__
    try:
        options = parse_argstring(magic, line)
    except UsageError as error:
        raise SpecError(f"%{name}: {_suggest(str(error), magic)}") from None
    except ValueError as error:
        raise SpecError(f"%{name}: {error}.") from None
    for option, value in vars(options).items():
        setattr(options, option, _unquoted(value))
    return options


def _unquoted(value: Any) -> Any:
    """Return a value without the quotes around it, which IPython leaves where a shell would not."""
    if isinstance(value, list):
        return [_unquoted(one) for one in value]
    quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def find_cluster(name: str | None) -> Cluster:
    """Return the cluster `name`; the one that was started last for None.

    Raises
    ------
    SpecError
        If there is none.
    """
    if name is None:
        cluster = registry.current()
        if cluster is None:
            raise SpecError(NO_CLUSTER)
        return cluster
    found = registry.get(name)
    if found is None:
        known = ", ".join(cluster.name for cluster in registry.all())
        raise SpecError(f"no cluster {name} in this notebook; {f'there is {known}' if known else NO_CLUSTER}.")
    return found


def _suggest(message: str, magic: Any) -> str:
    """Say what an unknown option may have meant."""
    match = re.search(r"unrecognized arguments?: (\S+)", message)
    if match is None:
        return f"{message.rstrip('.')}."
    word = match.group(1)
    if word.isdigit():
        return f"{word} is no option; did you mean -n {word}?"
    if re.fullmatch(r"\w+=-?\d+", word):
        return f"{word} is no option; a mesh is written without blanks: --mesh batch=4,{word}"
    known = [option for action in magic.parser._actions for option in action.option_strings]  # noqa: SLF001
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"%{magic.__name__}? lists the options."
    return f"unknown option {word}; {hint}"
