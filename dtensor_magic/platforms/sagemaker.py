"""SageMaker's training containers: ``SM_HOSTS`` and ``SM_CURRENT_HOST``, as TensorFlow's resolver reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..errors import SpecError
from .description import JobDescription
from .variables import addresses, base_port, is_set, whole

NAME = "sagemaker"

#: The port of TensorFlow's ``SageMakerClusterResolver``.
_PORT = 2223


def present(environ: Mapping[str, str]) -> bool:
    """Whether this is a training container of SageMaker."""
    return is_set(environ, "SM_HOSTS") and is_set(environ, "SM_CURRENT_HOST")


def read(environ: Mapping[str, str]) -> JobDescription:
    """Read the container's variables. Every host is a worker; their order is that of their names as text.

    Raises
    ------
    SpecError
        For a malformed list, or a current host that is not in it.
    """
    if not present(environ):
        raise SpecError("sagemaker: SM_HOSTS and SM_CURRENT_HOST are not both set here.")
    try:
        hosts = json.loads(environ["SM_HOSTS"])
    except ValueError as error:
        raise SpecError(f"SM_HOSTS: not JSON ({error}).") from None
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise SpecError('SM_HOSTS: not a list of host names such as ["algo-1", "algo-2"].')
    hosts = sorted(hosts)
    if environ["SM_CURRENT_HOST"] not in hosts:
        raise SpecError(
            f"SM_CURRENT_HOST: {environ['SM_CURRENT_HOST']!r} is not one of SM_HOSTS {', '.join(hosts)}."
        )
    return JobDescription(
        NAME,
        "SM_HOSTS",
        workers=addresses(",".join(hosts), "SM_HOSTS", base_port(environ, _PORT))[0],
        index=hosts.index(environ["SM_CURRENT_HOST"]),
        ports_given=False,
        accelerators=whole(environ["SM_NUM_GPUS"], "SM_NUM_GPUS") if is_set(environ, "SM_NUM_GPUS") else None,
    )
