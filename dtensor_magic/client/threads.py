"""A client's share of the cores, so that N clients on a host do not oversubscribe them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..agent.environment import BLAS_VARIABLES
from ..devices import usable_cores
from ..resources import MIN_INTER_OP, pin


def limit_threads(threads: int | None, cpus: Sequence[int] = ()) -> None:
    """Give TensorFlow, NumPy and OpenMP `threads` threads; what the user set in the environment wins.

    Parameters
    ----------
    threads : int or None
        None leaves TensorFlow's own choice, and lets NumPy use all cores.
    cpus : sequence of int
        The cores for this thread and those that it starts; empty for all.
    """
    import tensorflow as tf
    from threadpoolctl import threadpool_limits

    pin(cpus)
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
