"""Ports for scripts that open them seconds later, on their own."""

from __future__ import annotations

import random
from pathlib import Path

from ..errors import SpecError
from ..jobs import port_is_free

_FIRST = 20000
_TRIES = 1000


def free_ports(count: int) -> list[int]:
    """Choose `count` free ports below those that Linux gives to outgoing connections.

    A reservation would be in the script's way, so the choice is among ports that nobody gets by chance.

    Raises
    ------
    SpecError
        If there are not so many.
    """
    last = _first_outgoing()
    chance = random.SystemRandom()
    ports: list[int] = []
    for _ in range(_TRIES + count):
        port = chance.randrange(_FIRST, last)
        if port not in ports and port_is_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise SpecError(f"launch: no {count} ports between {_FIRST} and {last} are free on this host.")


def _first_outgoing() -> int:
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        # Not Linux, or hidden: what Linux has without being told.
        return 32768
    return low if low > _FIRST + _TRIES else 65536
