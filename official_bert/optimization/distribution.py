"""A name to a tf.distribute strategy, and what several workers agree on; nothing else knows the device."""

import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from official_bert.errors import UserError
from official_bert.optimization.choices import MIRRORED, MULTI_WORKER, ONE_DEVICE, STRATEGIES, TPU

_LOST_WORKER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


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
        return _mirrored()
    if name == MULTI_WORKER:
        return _multi_worker()
    if name == TPU:
        return _tpu(tpu_name or "local", tpu_zone, gcp_project)
    raise UserError(f"unknown distribution strategy {name!r}; expected one of {', '.join(STRATEGIES)}")


# These are made once in a process: a second MirroredStrategy would number its exchanges between devices as the first
# one does, and mix them up; workers can be connected before the first operation alone; to connect to a TPU again would
# erase what it holds.


@functools.cache
def _mirrored() -> tf.distribute.Strategy:
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices(kind)])


@functools.cache
def _multi_worker() -> tf.distribute.Strategy:
    return tf.distribute.MultiWorkerMirroredStrategy()


@functools.cache
def _tpu(name: str, zone: str | None, project: str | None) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu=name, zone=zone, project=project)
    except (ValueError, tf.errors.OpError) as error:
        raise UserError(
            f"no TPU {name!r} could be reached: {str(error).splitlines()[0]}; give --tpu_name, with "
            "--tpu_zone and --gcp_project where they are not this machine's, or another --distribution_strategy"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def needs_static_shapes(strategy: tf.distribute.Strategy) -> bool:
    """Whether each shape of a batch is compiled by itself, so that there should be few: on a TPU."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    """Whether other processes take the same steps."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def mean_over_workers(strategy: tf.distribute.Strategy, value: float) -> float:
    """Returns the mean of all workers' values; all of them must ask together, and wait for each other."""
    return float(_worker_mean(strategy)(tf.constant(value, tf.float64))) if is_multi_worker(strategy) else value


@functools.cache
def _worker_mean(strategy: tf.distribute.Strategy) -> Any:
    def replica_mean(value: tf.Tensor) -> tf.Tensor:
        # The copy is on the replica's device, which the reduction must know.
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(value))

    def mean(value: tf.Tensor) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(replica_mean, args=(value,)))[0]

    return tf.function(mean)


def check_same_step(strategy: tf.distribute.Strategy, step: float, folder: str) -> None:
    """Raises a UserError if the workers go on from different steps; `folder` is where they read them."""
    # All are at one step if the mean of the squares is the square of the mean.
    mean, mean_of_squares = (mean_over_workers(strategy, float(value)) for value in (step, step**2))
    if mean_of_squares != mean**2:
        raise UserError(
            f"the workers stand at different steps, this one at {step:,.0f}: all must reach the same --output_dir, and "
            f"read the same checkpoints there; it is {folder}"
        )


@contextlib.contextmanager
def naming_lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns TensorFlow's error about another worker into a UserError that says what to do."""
    try:
        yield
    except _LOST_WORKER as error:
        if not is_multi_worker(strategy):
            raise
        raise UserError(
            f"another worker was lost, or cannot be reached ({str(error).splitlines()[0]}); start all workers again "
            "with the same command: they go on from the last checkpoint"
        ) from error


def compiles_parts(strategy: tf.distribute.Strategy) -> bool:
    """Whether XLA should compile parts of a step: on a single CPU, where TensorFlow can do that.

    TensorFlow's kernels for a CPU multiply matrices faster than XLA's and pass over memory more often.
    """
    is_cpu = isinstance(strategy, tf.distribute.OneDeviceStrategy) and "CPU" in strategy.extended.worker_devices[0]
    return is_cpu and has_xla_for_host()


def has_xla_for_host() -> bool:
    """Whether XLA can compile for this machine's own processor or GPU: not with the TensorFlow of a TPU's host."""
    return importlib.util.find_spec("libtpu") is None
