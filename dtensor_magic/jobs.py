"""``DTENSOR_JOBS``: the addresses of all clients, in the order of their ids.

The format is that of TensorFlow's page of ``initialize_accelerator_system``: a comma-separated list of
``{hostname}:{port}``; addresses that begin with ``/bns/`` must be in the order of their task number.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from .errors import SpecError

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_BNS = "/bns/"


def parse_jobs(text: str, where: str = "jobs") -> tuple[str, ...]:
    """Split and check a ``DTENSOR_JOBS`` list.

    Parameters
    ----------
    text : str
        ``host:port,host:port``; blanks around the commas are ignored.
    where : str
        Where it stands, for the error's line.

    Returns
    -------
    tuple of str
        One address per client; empty for an empty text, which means local mode.

    Raises
    ------
    SpecError
        For a malformed or repeated address, a port out of range, or ``/bns/`` addresses out of order.
    """
    if not text.strip():
        return ()
    jobs = tuple(job.strip() for job in text.split(","))
    for job in jobs:
        _check_address(job, where)
    for position, job in enumerate(jobs):
        if job in jobs[:position]:
            raise SpecError(f"{where}: {job} stands twice; each client needs its own host:port.")
    if any(job.startswith(_BNS) for job in jobs):
        _check_bns_order(jobs, where)
    return jobs


def _check_address(job: str, where: str) -> None:
    if job.startswith(_BNS):
        return
    if not job:
        raise SpecError(f"{where}: an address is empty; write host:port,host:port without a trailing comma.")
    host, colon, port = job.rpartition(":")
    if not colon or not host:
        raise SpecError(f"{where}: {job!r} is not host:port.")
    if not _is_host(host):
        raise SpecError(f"{where}: {host!r} in {job!r} is not a host name or address (IPv6 as [::1]:port).")
    check_port(port, where=f"{where}: {job!r}")


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return False
        return True
    return _HOST.fullmatch(host) is not None


def check_port(text: str, *, where: str) -> int:
    """Return the port that `text` names, or raise a `SpecError` that begins with `where`."""
    if not text.isascii() or not text.isdigit():
        raise SpecError(f"{where}: {text!r} is not a port number.")
    port = int(text)
    if not 1 <= port <= 65535:
        raise SpecError(f"{where}: port {port} is out of range; ports are 1 to 65535.")
    return port


def _bns_task(job: str, where: str) -> int:
    number = job.rsplit("/", 1)[-1].rsplit(":", 1)[0]
    if not number.isdigit():
        raise SpecError(f"{where}: {job!r} does not end in a task number.")
    return int(number)


def _check_bns_order(jobs: tuple[str, ...], where: str) -> None:
    right = tuple(sorted(jobs, key=lambda job: _bns_task(job, where)))
    if jobs != right:
        raise SpecError(f"{where}: /bns/ addresses must be in the order of their task number: {','.join(right)}")


def split_address(job: str) -> tuple[str, int] | None:
    """Return the host and the port of `job`, or None for a ``/bns/`` address."""
    if job.startswith(_BNS):
        return None
    host, _, port = job.rpartition(":")
    return host.strip("[]"), int(port)


def is_local_host(host: str) -> bool:
    """Whether `host` names this machine: a loopback address, or one that this machine can bind."""
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return any(_can_bind(str(address)) for address in addresses)


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def check_ports_free(jobs: tuple[str, ...]) -> None:
    """Raise a `SpecError` that names the port, if one of `jobs` on this host is taken."""
    for job in jobs:
        place = split_address(job)
        if place is not None and is_local_host(place[0]) and not port_is_free(place[1]):
            raise SpecError(f"jobs: port {place[1]} of {job} is already in use on this host; choose another.")


def port_is_free(port: int) -> bool:
    """Whether TensorFlow's server could listen on `port`: it listens on all interfaces."""
    for family, wildcard in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As gRPC does it, so that a port in TIME_WAIT is not called taken.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((wildcard, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return True
