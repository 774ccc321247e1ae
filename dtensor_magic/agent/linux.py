"""What the agent asks of Linux beyond Python's library: subreapers, parent-death signals, namespaces."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def become_subreaper() -> None:
    """Make this process the parent of descendants whose own parent ends (see prctl(2))."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent, which must be `parent`, ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # It ended before the call above, so no signal will come.
        os._exit(1)


def hold_namespace(answer: int) -> NoReturn:
    """Enter a new network namespace with its loopback up, say so on file descriptor `answer`, and stay."""
    try:
        _unshare_network()
        _raise_loopback()
        message = {"pid": os.getpid()}
    except OSError as error:
        message = {"error": str(error)}  # type: ignore[dict-item]
    os.write(answer, json.dumps(message).encode())
    os.close(answer)
    if "error" in message:
        os._exit(1)
    os.setsid()
    while True:
        signal.pause()


def _unshare_network() -> None:
    if _libc.unshare(_CLONE_NEWNET) == 0:
        return
    # Without privilege, a network namespace comes with a user namespace in which we keep our ids.
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET), "unshare(CLONE_NEWUSER | CLONE_NEWNET)")
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", "ascii")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack("16sh22x", request)[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def enter_namespace(holder: int) -> None:
    """Enter the network namespace of process `holder`, by way of its user namespace where it has its own."""
    folder = Path(f"/proc/{holder}/ns")
    if (folder / "user").readlink() != Path("/proc/self/ns/user").readlink():
        _enter(folder / "user", _CLONE_NEWUSER)
    _enter(folder / "net", _CLONE_NEWNET)


def _enter(namespace: Path, kind: int) -> None:
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        _check(_libc.setns(descriptor, kind), f"setns({namespace})")
    finally:
        os.close(descriptor)
