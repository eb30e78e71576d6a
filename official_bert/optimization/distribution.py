"""A name to a tf.distribute strategy; nothing else knows the device."""

import importlib.util

import tensorflow as tf

from official_bert.errors import UserError
from official_bert.optimization.choices import MIRRORED, MULTI_WORKER, ONE_DEVICE, STRATEGIES, TPU


def get_strategy(
    name: str, tpu_name: str | None = None, tpu_zone: str | None = None, gcp_project: str | None = None
) -> tf.distribute.Strategy:
    """Returns the strategy of that name.

    Args:
        name: "one_device" (the first GPU, else the CPU), "mirrored" (all devices of this machine), "multi_worker" (all
            devices of the machines in the environment variable TF_CONFIG), or "tpu".
        tpu_name: the TPU's name or grpc address; None or "local" for a TPU VM's own.
        tpu_zone: the TPU's zone; None where it can be detected.
        gcp_project: the project the TPU belongs to, likewise.

    Raises:
        UserError: the name is unknown, or there is no such device.
    """
    if name == ONE_DEVICE:
        return tf.distribute.OneDeviceStrategy("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0")
    if name == MIRRORED:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        return tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices(kind)])
    if name == MULTI_WORKER:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == TPU:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(
                tpu=tpu_name or "local", zone=tpu_zone, project=gcp_project
            )
        except (ValueError, tf.errors.OpError) as error:
            raise UserError(
                f"no TPU {tpu_name or 'local'!r} could be reached: {str(error).splitlines()[0]}; give --tpu_name, with "
                "--tpu_zone and --gcp_project where they are not this machine's, or another --distribution_strategy"
            ) from error
        return tf.distribute.TPUStrategy(resolver)
    raise UserError(f"unknown distribution strategy {name!r}; expected one of {', '.join(STRATEGIES)}")


def compiles_parts(strategy: tf.distribute.Strategy) -> bool:
    """Whether XLA should compile parts of a step: on a single CPU, where TensorFlow can do that.

    TensorFlow's kernels for a CPU multiply matrices faster than XLA's and pass over memory more often. The TensorFlow
    of a TPU's host has no XLA for the host.
    """
    is_cpu = isinstance(strategy, tf.distribute.OneDeviceStrategy) and "CPU" in strategy.extended.worker_devices[0]
    return is_cpu and importlib.util.find_spec("libtpu") is None
