"""DTensor's own variables, as TensorFlow's page of ``initialize_accelerator_system`` has them."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import SpecError
from ..jobs import parse_jobs
from .description import JobDescription
from .variables import is_set

NAME = "dtensor"


def present(environ: Mapping[str, str]) -> bool:
    """Whether there are jobs; set but empty means local mode."""
    return is_set(environ, "DTENSOR_JOBS")


def is_empty(environ: Mapping[str, str]) -> bool:
    """Whether the variable is there without a job: local mode by the page, an error by TensorFlow 2.20."""
    return "DTENSOR_JOBS" in environ and not present(environ)


def read(environ: Mapping[str, str]) -> JobDescription:
    """Read ``DTENSOR_JOBS`` and ``DTENSOR_CLIENT_ID``; without jobs it is local mode.

    Raises
    ------
    SpecError
        For a malformed list, or a client id that is no whole number. Whether it is in range is checked with
        the rest of what a user asks for.
    """
    jobs = parse_jobs(environ.get("DTENSOR_JOBS", ""))
    return JobDescription(NAME, "DTENSOR_JOBS", workers=jobs, index=(client_id(environ) or 0) if jobs else 0)


def client_id(environ: Mapping[str, str]) -> int | None:
    """Return ``DTENSOR_CLIENT_ID``, or None where it is not set.

    Raises
    ------
    SpecError
        If it is no whole number.
    """
    text = environ.get("DTENSOR_CLIENT_ID")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise SpecError(f"DTENSOR_CLIENT_ID: {text!r} is not a whole number.") from None


def job_name(environ: Mapping[str, str]) -> str | None:
    """Return ``DTENSOR_JOB_NAME``, or None."""
    return environ.get("DTENSOR_JOB_NAME") or None


def parallel_executor(environ: Mapping[str, str]) -> str | None:
    """Return ``DTENSOR_USE_PARALLEL_EXECUTOR``, or None."""
    return environ.get("DTENSOR_USE_PARALLEL_EXECUTOR") or None
