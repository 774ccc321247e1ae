"""Read values of variables: lists of hosts, with or without brackets and ports, and whole numbers."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from ..errors import SpecError
from ..jobs import check_port, parse_jobs

#: What clients listen on where a platform names hosts alone: TensorFlow's and Volcano's usual port.
DEFAULT_PORT = 2222

#: The variable that replaces :data:`DEFAULT_PORT`, and Slurm's port, alike on all nodes.
PORT_VARIABLE = "DTENSOR_MAGIC_PORT"


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """Whether `name` has a value; an empty one counts as none."""
    return bool(environ.get(name, "").strip())


def base_port(environ: Mapping[str, str], default: int = DEFAULT_PORT) -> int:
    """Return the port where the platform gives none.

    Raises
    ------
    SpecError
        If the user's own choice is no port.
    """
    if not is_set(environ, PORT_VARIABLE):
        return default
    return check_port(environ[PORT_VARIABLE].strip(), where=PORT_VARIABLE)


def addresses(text: str, where: str, port: int = DEFAULT_PORT) -> tuple[tuple[str, ...], bool]:
    """Read a list of addresses: ``[a:1,b:2]``, ``a:1,b:2``, ``a,b``, ``["a:1", "b:2"]``.

    Parameters
    ----------
    text : str
    where : str
        The variable or option, for the error's line.
    port : int
        For hosts that stand without one.

    Returns
    -------
    addresses : tuple of str
        ``host:port`` each.
    ports_given : bool
        Whether all had a port.

    Raises
    ------
    SpecError
        For what is no list of addresses, or has one twice.
    """
    text = text.strip()
    if text.startswith("[") and text.endswith("]") and not _is_ipv6(text[1:-1]):
        text = text[1:-1]
    if not text.strip():
        return (), True
    parts = [part.strip().strip("\"'").strip() for part in text.split(",")]
    given = [part for part in parts if not _is_host_alone(part)]
    whole = [_with_port(part, port) for part in parts]
    return parse_jobs(",".join(whole), where), len(given) == len(parts)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_host_alone(part: str) -> bool:
    return _is_ipv6(part) or part.endswith("]") or (":" not in part and part != "")


def _with_port(part: str, port: int) -> str:
    if not _is_host_alone(part):
        return part
    return f"[{part}]:{port}" if _is_ipv6(part) else f"{part}:{port}"


def whole(value: object, where: str) -> int:
    """Return the whole number from 0 that `value`, a number or its text, is.

    Raises
    ------
    SpecError
        That begins with `where`.
    """
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise SpecError(f"{where}: {value!r} is not a whole number from 0.")


def within(index: int, count: int, where: str, what: str) -> int:
    """Return `index`, if it is one of `count`.

    Raises
    ------
    SpecError
        If it is not.
    """
    if index >= count:
        there = f"only 0 to {count - 1}" if count else "none"
        raise SpecError(f"{where}: there is no {what} {index}; there is {there}.")
    return index
