"""Train a linear model over all clients of a job: ``dtensor-magic launch -n 2 launch_dtensor.py --epochs 5``.

The same program runs with one client or many, on one node or several: the launcher sets the ``DTENSOR_*``
variables.
"""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

SAMPLES, FEATURES = 256, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs

    device_type = dtensor.initialize_accelerator_system()
    devices = dtensor.num_global_devices(device_type)
    mesh = dtensor.create_distributed_mesh([("batch", devices)], device_type=device_type)
    rows = dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)
    whole = dtensor.Layout.replicated(mesh, rank=2)

    # Every client makes the same numbers, and keeps its own rows of them, as many as others, on its devices.
    random = np.random.default_rng(seed=1)
    samples = random.standard_normal((SAMPLES, FEATURES), dtype=np.float32)[: SAMPLES // devices * devices]
    truth = random.standard_normal((FEATURES, 1), dtype=np.float32)
    features = dtensor.relayout(dtensor.copy_to_mesh(samples, whole), rows)
    targets = dtensor.relayout(dtensor.copy_to_mesh(samples @ truth, whole), rows)
    weights = dtensor.DVariable(dtensor.call_with_layout(tf.zeros, whole, shape=(FEATURES, 1)))

    @tf.function
    def step(features: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            error = tf.matmul(features, weights.read_value()) - targets
            loss = tf.reduce_mean(tf.square(error))
        weights.assign_sub(0.05 * tape.gradient(loss, weights))
        return loss

    print(f"client {dtensor.client_id()} of {dtensor.num_clients()}, {devices} {device_type} devices")
    for epoch in range(1, epochs + 1):
        for _ in range(10):
            loss = step(features, targets)
        # Only one needs to say what all know.
        if dtensor.client_id() == 0:
            print(f"epoch {epoch}  loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
