"""The environment of clients, whoever starts them."""

from __future__ import annotations

from collections.abc import Mapping

#: What OpenMP and the BLAS libraries take their thread count from.
BLAS_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` as clients get it.

    TensorFlow's C++ log begins at warnings, unless the user chose a level: DTensor writes two lines of level INFO
    for each new function on each client, with a time stamp, into the middle of a cell's output.
    """
    return {"TF_CPP_MIN_LOG_LEVEL": "1", **environ}
