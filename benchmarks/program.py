"""The SPMD program that every way of starting clients runs: as a script, in an engine, in a cell.

As a script it does what a hand-launched client does: take its place from the ``DTENSOR_*`` variables, initialise
DTensor, run one collective, print the result. Then it stays until its standard input ends, so that it can be
measured.
"""

from __future__ import annotations

import os
import sys

import tensorflow as tf
from tensorflow.experimental import dtensor


def collective(mesh: dtensor.Mesh) -> float:
    """Sum a vector that is sharded over `mesh`'s dimension x; client i holds the one value i + 1."""
    part = dtensor.pack([tf.constant([dtensor.client_id() + 1.0])], dtensor.Layout(["x"], mesh))
    return float(tf.reduce_sum(part))


def initialise() -> dtensor.Mesh:
    """Initialise DTensor from the environment, and return a mesh over all clients with the dimension x."""
    dtensor.initialize_accelerator_system("CPU")
    return dtensor.create_distributed_mesh([("x", dtensor.num_clients())], device_type="CPU")


def initialise_and_sum() -> float:
    """Initialise DTensor, and return the first collective's result on all clients."""
    return collective(initialise())


if __name__ == "__main__":
    print(initialise_and_sum(), flush=True)
    sys.stdin.read()
    # TensorFlow's own end would wait for peers that are gone.
    os._exit(0)
