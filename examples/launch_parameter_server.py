"""Train with parameter servers: ``dtensor-magic launch -n 2 --ps 1 launch_parameter_server.py --epochs 5``.

The launcher runs TensorFlow's servers of the workers and the parameter servers; this program is the coordinator.
"""

import argparse

import tensorflow as tf

FEATURES, BATCH, STEPS = 8, 32, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        # On the parameter servers.
        weights = tf.Variable(tf.zeros((FEATURES, 1)))
        bias = tf.Variable(tf.zeros((1,)))
    truth = tf.random.stateless_normal((FEATURES, 1), seed=(3, 4))

    @tf.function
    def step(number: tf.Tensor) -> tf.Tensor:
        features = tf.random.stateless_normal((BATCH, FEATURES), seed=tf.stack([number, 1]))
        with tf.GradientTape() as tape:
            error = tf.matmul(features, weights) + bias - tf.matmul(features, truth)
            loss = tf.reduce_mean(tf.square(error))
        for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias)), strict=True):
            variable.assign_sub(0.05 * gradient)
        return loss

    cluster = resolver.cluster_spec()
    print(f"coordinator of {cluster.num_tasks('worker')} workers and {cluster.num_tasks('ps')} parameter servers")
    for epoch in range(1, epochs + 1):
        # Any worker takes any step.
        losses = [coordinator.schedule(step, args=(tf.constant(epoch * STEPS + i),)) for i in range(STEPS)]
        coordinator.join()
        print(f"epoch {epoch}  loss {sum(float(loss.fetch()) for loss in losses) / STEPS:.4f}")


if __name__ == "__main__":
    main()
