"""What this machine has, found without starting TensorFlow's runtime or touching a device.

The process that forks clients, and the notebook that plans them, must not open an accelerator: a CUDA
context does not survive a fork, and a TPU belongs to one process.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from . import cgroup
from .errors import NoTensorFlowError, SpecError

DEVICE_TYPES = ("CPU", "GPU", "TPU")

_NVIDIA_DEVICES = Path("/proc/driver/nvidia/gpus")
_TPU_DEVICES = (Path("/dev"), "accel[0-9]*"), (Path("/dev/vfio"), "[0-9]*")


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs that a process with `environ` may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    present = [str(index) for index, _ in enumerate(_listing(_NVIDIA_DEVICES, "*"))]
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    visible: list[str] = []
    for name in (part.strip() for part in chosen.split(",")):
        # CUDA ignores everything from the first invalid entry on.
        if not name or (name.lstrip("-").isdigit() and name not in present):
            break
        visible.append(name)
    return visible if present else []


def visible_tpus() -> int:
    """Return the number of TPU device files on this machine."""
    return sum(len(_listing(folder, pattern)) for folder, pattern in _TPU_DEVICES)


def _listing(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern)) if folder.is_dir() else []


def preferred_device_type(environ: Mapping[str, str] = os.environ) -> str:
    """Return what TensorFlow's ``preferred_device_type`` would: TPU, GPU or CPU, the first that is there."""
    if visible_tpus():
        return "TPU"
    return "GPU" if visible_gpus(environ) else "CPU"


def known_device_type(text: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the device type that `text` names, in any case; the preferred one for None.

    Raises
    ------
    SpecError
        For any other word.
    """
    if text is None:
        return preferred_device_type(environ)
    device_type = text.upper()
    if device_type not in DEVICE_TYPES:
        raise SpecError(f"device type {text!r} is unknown; it is CPU, GPU or TPU.")
    return device_type


def usable_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return how many CPU cores this process may use: a container's quota can allow fewer than it may run on."""
    quota = cgroup.cpu_quota()
    cores = len(usable_cpus())
    return cores if quota is None else max(1, min(cores, int(quota)))


def require_tensorflow() -> str:
    """Return TensorFlow's version, found without importing it.

    Raises
    ------
    NoTensorFlowError
        If there is none. The line says which extra to install.
    """
    folder = tensorflow_folder()
    if folder is not None:
        for build in ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "tensorflow-rocm"):
            try:
                return metadata.version(build)
            except metadata.PackageNotFoundError:
                continue
        return "unknown"
    raise NoTensorFlowError(
        "TensorFlow is not installed in this Python environment; install one of its builds with "
        "pip install 'dtensor-magic[cpu]', 'dtensor-magic[gpu]' or 'dtensor-magic[tpu]'."
    )


def tensorflow_folder() -> Path | None:
    """Return the folder of the package ``tensorflow``, or None."""
    try:
        found = importlib.util.find_spec("tensorflow")
    except (ImportError, ValueError):
        return None
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0])


@functools.cache
def reads_parallel_executor() -> bool:
    """Whether the installed TensorFlow's Python reads ``DTENSOR_USE_PARALLEL_EXECUTOR`` (2.20 does not)."""
    folder = tensorflow_folder()
    if folder is None:
        return False
    sources = (folder / "dtensor" / "python").glob("*.py")
    return any("DTENSOR_USE_PARALLEL_EXECUTOR" in source.read_text("utf-8", "replace") for source in sources)
