"""Ports for TensorFlow's servers, held until the moment of use.

TensorFlow's gRPC server takes no ``SO_REUSEPORT``, so a port is reserved by a bound socket that is closed just
before the server starts. The server listens on all interfaces, and so does the reservation.
"""

from __future__ import annotations

import socket

from ..errors import AgentError


class PortReservations:
    """Ports that this agent holds."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def reserve(self, count: int) -> list[int]:
        """Reserve `count` ports that the system chooses."""
        return [self._hold(0) for _ in range(count)]

    def reserve_given(self, ports: list[int]) -> None:
        """Reserve the ports that a user chose.

        Raises
        ------
        AgentError
            That names the port, if one is taken.
        """
        taken: list[int] = []
        try:
            taken.extend(self._hold(port) for port in ports)
        except AgentError:
            for port in taken:
                self.release(port)
            raise

    def _hold(self, port: int) -> int:
        held = _bound(port)
        number: int = held.getsockname()[1]
        self._held[number] = held
        return number

    def release(self, port: int) -> None:
        """Close the reservation of `port`, if there is one."""
        held = self._held.pop(port, None)
        if held is not None:
            held.close()


def _bound(port: int) -> socket.socket:
    try:
        if socket.has_ipv6:
            try:
                return _bind(socket.AF_INET6, "::", port)
            except OSError:
                # No IPv6 on this host after all, or the port is taken: IPv4 tells which.
                return _bind(socket.AF_INET, "0.0.0.0", port)  # noqa: S104
        return _bind(socket.AF_INET, "0.0.0.0", port)  # noqa: S104
    except OSError as error:
        raise AgentError(f"port {port} cannot be used: {error.strerror}") from error


def _bind(family: int, address: str, port: int) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port:
            # A user's own port may be in TIME_WAIT since the last start, which is no use by anyone. One that the
            # system chooses is not shared in this way, so that the reservation keeps everybody off it.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((address, port))
    except OSError:
        held.close()
        raise
    return held
