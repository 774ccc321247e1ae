"""A task that others compute on: TensorFlow's server, as ``TF_CONFIG`` describes it, until it is ended."""

from __future__ import annotations


def main() -> None:
    """Serve; never returns."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
