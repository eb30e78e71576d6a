"""A name to a tf.distribute strategy; nothing else knows the device."""

import tensorflow as tf

from official_bert.errors import UserError

STRATEGIES = ONE_DEVICE, *_ = ("one_device", "mirrored", "multi_worker", "tpu")


def get_strategy(
    name: str, tpu_name: str | None = None, tpu_zone: str | None = None, gcp_project: str | None = None
) -> tf.distribute.Strategy:
    """Returns the strategy of that name.

    Args:
        name: "one_device" (the first GPU, else the CPU), "mirrored" (all devices of this machine), "multi_worker" (all
            devices of the machines in the environment variable TF_CONFIG), or "tpu".
        tpu_name: the TPU's name or grpc address; None or "local" for a TPU VM's own.
        tpu_zone: the TPU's zone; None where it can be found out.
        gcp_project: the project the TPU belongs to, likewise.

    Raises:
        UserError: the name is unknown, or there is no such device.
    """
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0")
    if name == "mirrored":
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        return tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices(kind)])
    if name == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "tpu":
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
