"""A TPU slice on GKE: ``TPU_WORKER_ID`` and ``TPU_WORKER_HOSTNAMES``. One client per host, as a TPU wants it."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import SpecError
from ..jobs import split_address
from .description import JobDescription
from .variables import addresses, base_port, is_set, whole, within

NAME = "gke_tpu"

_HOSTS = "TPU_WORKER_HOSTNAMES"


def present(environ: Mapping[str, str]) -> bool:
    """Whether the slice's hosts are named; a TPU VM of its own names ``localhost``."""
    return is_set(environ, _HOSTS)


def read(environ: Mapping[str, str]) -> JobDescription:
    """Read the pod's variables. A port among the names is the TPU runtime's, and not for us.

    Raises
    ------
    SpecError
        For malformed lists, and a worker id that is not in them.
    """
    if not present(environ):
        raise SpecError(f"gke_tpu: {_HOSTS} is not set here.")
    port = base_port(environ)
    places = [split_address(address) for address in addresses(environ[_HOSTS], _HOSTS, port)[0]]
    hosts = [place[0] for place in places if place is not None]
    workers = addresses(",".join(hosts), _HOSTS, port)[0]
    index = 0
    if len(workers) > 1:
        if not is_set(environ, "TPU_WORKER_ID"):
            raise SpecError("TPU_WORKER_ID: not set, so which host of the slice this is cannot be known.")
        index = within(whole(environ["TPU_WORKER_ID"], "TPU_WORKER_ID"), len(workers), "TPU_WORKER_ID", "host")
    return JobDescription(NAME, _HOSTS, workers=workers, index=index, ports_given=False)
