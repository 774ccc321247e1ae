"""What a request asks for: a `ClusterSpec` as JSON, checked, and the magic line that says the same."""

from __future__ import annotations

import difflib
import math
import shlex
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..errors import SpecError
from ..spec import ClusterSpec

_HINTS = get_type_hints(ClusterSpec)

_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}

#: The options of ``%dtensor_init`` with a value, by the spec's field.
_OPTIONS = {
    "clients": "-n",
    "logical_cpus": "--logical-cpus",
    "jobs": "--jobs",
    "client_id": "--client-id",
    "job_name": "--job-name",
    "parallel_executor": "--parallel-executor",
    "mesh": "--mesh",
    "timeout": "--timeout",
    "platform": "--from",
    "name": "--name",
    "start_method": "--start-method",
    "lease": "--lease",
}

#: Those without one.
_FLAGS = {
    "background": "--background",
    "here": "--here",
    "megcore": "--megcore",
    "reset_context": "--reset-context",
    "isolate": "--isolate",
}


@dataclass(frozen=True)
class StartRequest:
    """A cluster to be started.

    Attributes
    ----------
    spec : ClusterSpec
    kernelspec : str or None
        Whose Python environment the clients run in; None for the server's default kernel.
    path : str
        The clients' working folder, as an API path: relative to the server's root.
    """

    spec: ClusterSpec
    kernelspec: str | None = None
    path: str = ""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> StartRequest:
        """Read what a request's body asks for.

        Raises
        ------
        SpecError
            For a field that there is not, or a value that is none for it.
        """
        values = {name: value for name, value in body.items() if name not in ("kernelspec", "path")}
        kernelspec, path = body.get("kernelspec"), body.get("path") or ""
        for name, value, hint in (("kernelspec", kernelspec, str | None), ("path", path, str)):
            check_value(name, value, hint)
        for name, value in values.items():
            if name not in _HINTS:
                near = difflib.get_close_matches(name, [*_HINTS, "kernelspec", "path"], n=1)
                raise SpecError(f"{name} is no field of a cluster{f'; did you mean {near[0]}?' if near else '.'}")
            check_value(name, value, _HINTS[name])
        return cls(_in_background(ClusterSpec(**values)), kernelspec, path)


def _in_background(spec: ClusterSpec) -> ClusterSpec:
    """Return `spec` for clients that no notebook kernel is one of."""
    if spec.here:
        raise SpecError("here: the server starts background clients; %dtensor_init --here makes a notebook one.")
    return spec if (spec.clients or 1) > 1 else replace(spec, background=True)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise a `SpecError`, if `value` is not of the type `hint`."""
    if not _fits(value, hint):
        kinds = [kind for kind in _kinds(hint) if kind is not type(None)]
        what = " or ".join(_WORDS.get(kind, "an object of texts") for kind in kinds)
        raise SpecError(f"{name}: {value!r} is not {what}.")


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    return any(_is(value, kind) for kind in _kinds(hint))


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if get_origin(kind) is not None:
        # The one such field is `env`.
        return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    return isinstance(value, kind)


def magic_line(spec: ClusterSpec) -> str:
    """Return the ``%dtensor_init`` line that starts the same in a notebook."""
    words = ["%dtensor_init", *([spec.device_type] if spec.device_type else [])]
    for field in fields(spec):
        name, value = field.name, getattr(spec, field.name)
        default = {} if name == "env" else field.default
        if value == default or name == "device_type":
            continue
        if name in _FLAGS:
            words.append(_FLAGS[name])
        elif name == "coordination_service":
            words.append("--no-coordination-service")
        elif name == "env":
            words += [word for key, text in value.items() for word in ("--env", _quote(f"{key}={text}"))]
        else:
            number = isinstance(value, float)
            words += [_OPTIONS[name], f"{value:g}" if number else _quote(str(value))]
    return " ".join(words)


def _quote(text: str) -> str:
    return shlex.quote(text) if any(character.isspace() or character in "\"'" for character in text) else text
