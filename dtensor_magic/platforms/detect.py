"""Find out which platform started this process: the one that is present; two must say the same."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import SpecError
from . import dtensor, gke_tpu, modelarts, sagemaker, slurm, tf_config, volcano
from .description import JobDescription
from .variables import is_set

#: The variable that chooses a platform as ``--from`` does, for programs that somebody else starts.
VARIABLE = "DTENSOR_MAGIC_FROM"


@dataclass(frozen=True)
class Reader:
    """How one platform is read."""

    present: Callable[[Mapping[str, str]], bool]
    read: Callable[[Mapping[str, str]], JobDescription]


#: By name, the most explicit first.
READERS = {
    module.NAME: Reader(module.present, module.read)
    for module in (dtensor, modelarts, tf_config, sagemaker, volcano, slurm, gke_tpu)
}

#: Platforms that speak another one's language.
_ALIASES = {"kubeflow": tf_config.NAME}


def read(platform: str, environ: Mapping[str, str]) -> JobDescription:
    """Read what `platform` says.

    Raises
    ------
    SpecError
        For an unknown platform, or one whose variables are missing or wrong.
    """
    name = platform.strip().lower().replace("-", "_")
    name = _ALIASES.get(name, name)
    if name not in READERS:
        near = difflib.get_close_matches(name, [*READERS, *_ALIASES], n=1)
        hint = f"did you mean {near[0]}?" if near else f"it is {', '.join(READERS)}."
        raise SpecError(f"from: platform {platform!r} is unknown; {hint}")
    return READERS[name].read(environ)


def detect(environ: Mapping[str, str]) -> JobDescription | None:
    """Read what is there.

    Returns
    -------
    JobDescription or None
        None where no platform says anything.

    Raises
    ------
    SpecError
        For variables that are wrong, and with both descriptions where two platforms disagree.
    """
    if is_set(environ, VARIABLE):
        return read(environ[VARIABLE], environ)
    found = [reader.read(environ) for reader in READERS.values() if reader.present(environ)]
    # Who knows of peers goes before who knows of none, and who was given ports before who had to choose them.
    found.sort(key=lambda description: (description.alone, not description.ports_given))
    for other in found[1:]:
        if not found[0].agrees(other):
            first, second = found[0].platform, other.platform
            raise SpecError(
                f"{first} and {second} disagree: {found[0]}; {other}. "
                f"Say which one holds: --from {first} or --from {second}."
            )
    return found[0] if found else None
