"""A client's share of the cores, so that N clients on a host do not oversubscribe them."""

from __future__ import annotations

import os

from ..agent.environment import BLAS_VARIABLES
from ..devices import usable_cores

#: What TensorFlow's inter-op pool keeps at least: an operation that waits for a peer must not block the others.
MIN_INTER_OP = 2


def limit_threads(threads: int | None) -> None:
    """Give TensorFlow, NumPy and OpenMP `threads` threads; what the user set in the environment wins.

    Parameters
    ----------
    threads : int or None
        None leaves TensorFlow's own choice, and lets NumPy use all cores.
    """
    import tensorflow as tf
    from threadpoolctl import threadpool_limits

    if threads is not None:
        if "TF_NUM_INTRAOP_THREADS" not in os.environ:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        if "TF_NUM_INTEROP_THREADS" not in os.environ:
            tf.config.threading.set_inter_op_parallelism_threads(max(MIN_INTER_OP, threads))
    own = next((os.environ[name] for name in BLAS_VARIABLES if os.environ.get(name, "").isdigit()), None)
    share = int(own) if own is not None else threads or usable_cores()
    # The libraries were loaded with one thread, in the template.
    threadpool_limits(share)
    if own is None:
        os.environ["OMP_NUM_THREADS"] = str(share)
