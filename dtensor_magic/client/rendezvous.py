"""Wait for the other clients' processes before TensorFlow does, which would wait for them without end.

TensorFlow's own wait cannot be interrupted, and names those that are missing in its log alone. So a notebook that
is itself a client first sees each peer's port open: opened by TensorFlow's server there, or by this very wait.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence

from ..errors import StartError
from ..jobs import split_address

#: Seconds between two tries to reach a peer.
_PAUSE = 0.1

#: Seconds between two looks for the leader.
_LEADER_PAUSE = 0.005


def await_peers(jobs: Sequence[str], own: int, timeout: float) -> None:
    """Return when every client of `jobs` but number `own` accepts connections.

    Parameters
    ----------
    jobs : sequence of str
        ``host:port`` per client. ``/bns/`` addresses cannot be looked up here and are not waited for.
    timeout : float
        Seconds.

    Raises
    ------
    StartError
        That names the clients which are missing.
    """
    deadline = time.monotonic() + timeout
    peers = {client: place for client, job in enumerate(jobs) if client != own and (place := split_address(job))}
    place = split_address(jobs[own])
    with _open_door(place[1]) if place else contextlib.nullcontext():
        while peers:
            peers = {client: place for client, place in peers.items() if not _accepts(place)}
            if not peers:
                break
            if time.monotonic() > deadline:
                missing = [f"client {client} ({jobs[client]})" for client in sorted(peers)]
                raise StartError(
                    f"{', '.join(missing)} did not come up within {timeout:g} s; start the program there too, "
                    "with the same DTENSOR_JOBS, or give more --timeout.",
                    missing=missing,
                )
            time.sleep(_PAUSE)
        # A peer that tries once more now and then must still find us.
        time.sleep(2 * _PAUSE)


def await_leader(jobs: Sequence[str], own: int, timeout: float) -> None:
    """Return when client 0's server listens, or after `timeout` seconds; at once in client 0 itself.

    gRPC waits a full second before it tries an unreachable server again, so a client that comes first would be
    a second late.
    """
    leader = split_address(jobs[0]) if jobs else None
    if leader is None or own == 0:
        return
    deadline = time.monotonic() + timeout
    while not _accepts(leader) and time.monotonic() < deadline:
        time.sleep(_LEADER_PAUSE)


def _accepts(place: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(place, timeout=1.0):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _open_door(port: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Accept, and at once close, connections to `port` while we wait."""
    door = socket.create_server(("", port))
    closing = threading.Event()

    def greet() -> None:
        door.settimeout(_PAUSE)
        while not closing.is_set():
            try:
                door.accept()[0].close()
            except TimeoutError:
                continue

    thread = threading.Thread(target=greet, name="dtensor-magic-door", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()
        door.close()
