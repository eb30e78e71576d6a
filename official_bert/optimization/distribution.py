"""Creates tf.distribute strategies by name, and supports training with several workers."""

import contextlib
import functools
import importlib.util
import json
import os
import textwrap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.errors import UserError, shorten_error
from official_bert.optimization.choices import MIRRORED, MULTI_WORKER, ONE_DEVICE
from official_bert.utils.signals import default_signals

_TF_CONFIG = "TF_CONFIG"  # environment variable of TensorFlow
_NO_TPU_KERNELS = (
    "No OpKernel was registered to support Op 'ConfigureDistributedTPU'"  # part of TensorFlow's error message
)
_LOST_WORKER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def get_strategy(
    name: str,
    tpu_name: str | None = None,
    tpu_zone: str | None = None,
    gcp_project: str | None = None,
    *,
    worker_hosts: Sequence[str] = (),
    worker_index: int | None = None,
) -> tf.distribute.Strategy:
    """Creates the tf.distribute strategy with the given name.

    Args:
        name: "one_device" (the first GPU, or the CPU), "mirrored" (all devices of this machine), "multi_worker" (all
            devices of several machines), or "tpu".
        tpu_name: Name or grpc address of the TPU. None means "local", the TPU of this TPU VM.
        tpu_zone: Zone of the TPU. None detects it.
        gcp_project: Google Cloud project of the TPU. None detects it.
        worker_hosts: host:port of each worker, for "multi_worker". If empty, the environment variable TF_CONFIG or the
            workers of a SLURM step are used.
        worker_index: Index of this process in `worker_hosts`.

    Raises:
        UserError: If the device does not exist or the settings of the workers are inconsistent.
    """
    set_workers(name, worker_hosts, worker_index)
    if name == ONE_DEVICE:
        return tf.distribute.OneDeviceStrategy("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0")
    if name == MIRRORED:
        return _make_mirrored()
    if name == MULTI_WORKER:
        return _make_multi_worker()
    return _connect_to_tpu(tpu_name or "local", tpu_zone, gcp_project)


# A process creates each of these only once. A second MirroredStrategy would use the same keys for its exchanges between
# devices as the first one. Workers can only be connected before the first operation. Connecting to a TPU again erases
# its memory.


@functools.cache
def _make_mirrored() -> tf.distribute.Strategy:
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices(kind)])


@functools.cache
def _make_multi_worker() -> tf.distribute.Strategy:
    cluster = json.loads(os.environ.get(_TF_CONFIG, "{}")).get("cluster") or {}
    if (workers := sum(map(len, cluster.values()))) > 1:
        print(f"connecting {workers:,} workers", flush=True)  # TensorFlow waits for the others without a message.
    try:
        with default_signals():
            return tf.distribute.MultiWorkerMirroredStrategy()
    except _LOST_WORKER as error:
        reason = textwrap.shorten(shorten_error(error), 200)
        raise UserError(f"cannot connect the {workers:,} workers ({reason}); start all of them") from error


@functools.cache
def _connect_to_tpu(name: str, zone: str | None, project: str | None) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu=name, zone=zone, project=project)
    except (
        ValueError,
        OSError,
        ImportError,
        tf.errors.OpError,
    ) as error:  # The second and third are raised by Google Cloud clients.
        if _NO_TPU_KERNELS in str(error):
            reason = "this TensorFlow has no TPU support; on a TPU host, install tensorflow-tpu"
        else:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"cannot connect to the TPU {name!r}: {reason}; pass --tpu_name (and --tpu_zone and --gcp_project, if they "
            "differ from this machine's), or another --distribution_strategy without --use_tpu"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def set_workers(name: str, worker_hosts: Sequence[str], worker_index: int | None) -> None:
    """Sets the environment variable TF_CONFIG for the multi_worker strategy. TensorFlow reads the workers from it.

    Without `worker_hosts`, an existing TF_CONFIG is kept, or the workers of a SLURM step are used.

    Args:
        name: Name of the strategy.
        worker_hosts: host:port of each worker, in the same order on all workers. May be empty.
        worker_index: Index of this process in `worker_hosts`.

    Raises:
        UserError: If hosts and index are inconsistent, contradict TF_CONFIG or are passed for another strategy, or
            SLURM's variables or TF_CONFIG are unusable.
    """
    if name != MULTI_WORKER:
        if worker_hosts or worker_index is not None:
            raise UserError(f"--worker_hosts and --worker_index require --distribution_strategy={MULTI_WORKER}")
        return
    before = os.environ.get(_TF_CONFIG)
    if worker_hosts:
        hosts, index = _check_workers(worker_hosts, worker_index)
    elif worker_index is not None:
        raise UserError(f"--worker_index={worker_index} requires --worker_hosts")
    elif before is None and os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        hosts, index = _read_slurm_workers()
    else:
        _check_tf_config("{}" if before is None else before)
        return
    config = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
    if before not in (None, config):
        raise UserError(f"--worker_hosts contradicts the environment variable {_TF_CONFIG}; remove one of them")
    os.environ[_TF_CONFIG] = config


def _check_tf_config(text: str) -> None:
    """Checks the value of TF_CONFIG. Prints a warning if it contains no cluster, so that this process trains alone."""
    try:
        config = json.loads(text)
        workers, task = config.get("cluster"), config.get("task", {})
        is_valid = not workers or 0 <= int(task["index"]) < len(workers[task["type"]])
    except (AttributeError, KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise UserError(
            f"the environment variable {_TF_CONFIG} is {text}; expected JSON such as "
            '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}. Correct '
            "it, or remove it and pass --worker_hosts."
        )
    if not workers:
        print(
            f"warning: neither --worker_hosts nor {_TF_CONFIG} nor SLURM lists several workers, so this process trains "
            "alone",
            flush=True,
        )


def _check_workers(hosts: Sequence[str], index: int | None) -> tuple[list[str], int]:
    addresses = [host.rpartition(":") for host in hosts]
    if not all(host and port.isdigit() for host, _, port in addresses) or len(set(hosts)) < len(hosts):
        raise UserError(f"--worker_hosts={','.join(hosts)}: expected distinct addresses, such as host0:2222,host1:2222")
    if index is None or not 0 <= index < len(hosts):
        shown = "missing" if index is None else index
        raise UserError(
            f"--worker_index is {shown}; expected 0 to {len(hosts) - 1}, the index of this machine in --worker_hosts"
        )
    return list(hosts), index


def _read_slurm_workers() -> tuple[list[str], int]:
    """Returns the host:port of each worker of a SLURM step, one per task, and the index of this process."""
    tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
    try:
        # SLURM assigns GPUs to tasks. The resolver would count them with nvidia-smi and assign them again.
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False
        )
        hosts = [str(host) for host in resolver.cluster_spec().as_dict()["worker"]]
    except (RuntimeError, ValueError) as error:
        raise UserError(f"cannot find the workers in SLURM's variables: {error}; pass --worker_hosts") from error
    index = int(resolver.task_id)
    # The resolver sorts hosts by name. SLURM numbers its tasks in its own order, where n2 comes before n10.
    here = os.environ.get("SLURMD_NODENAME")
    if here and hosts[index].rpartition(":")[0] != here:
        raise UserError(
            f"SLURM runs task {index} on {here}, but TensorFlow expects it on {hosts[index]}, because TensorFlow sorts "
            f"the hosts by name ({', '.join(hosts)}); pass --worker_hosts and --worker_index=$SLURM_PROCID"
        )
    return hosts, index


def needs_static_shapes(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the strategy compiles each batch shape separately (on a TPU), so that few shapes are allowed."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the strategy trains with several processes."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def mean_over_workers(strategy: tf.distribute.Strategy, value: float) -> float:
    """Returns the mean of a value over all workers. All workers must call this function, which waits for the others."""
    return float(_worker_mean(strategy)(tf.constant(value, tf.float64))) if is_multi_worker(strategy) else value


@functools.cache
def _worker_mean(strategy: tf.distribute.Strategy) -> Any:
    def replica_mean(value: tf.Tensor) -> tf.Tensor:
        # The reduction needs a tensor on the replica's device, so copy the value.
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(value))

    def mean(value: tf.Tensor) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(replica_mean, args=(value,)))[0]

    return tf.function(mean)


def check_same_run(strategy: tf.distribute.Strategy, step: float, folder: str, values: Mapping[str, Any]) -> None:
    """Checks that all workers resume at the same step, with equal options and data.

    Workers with other options or data would train different weights, or wait for each other without end.

    Args:
        strategy: The distribution strategy.
        step: The step at which this worker resumes.
        folder: Folder of the checkpoints, for the error message.
        values: What must be equal on all workers: JSON values by the name for the error message. The names must be
            the same on all workers.

    Raises:
        UserError: If the workers differ.
    """
    if not is_multi_worker(strategy):
        return
    # Numbers are equal if and only if the mean of their squares is the square of their mean. With 20 bits, the sums are
    # exact.
    checksums = [zlib.crc32(json.dumps(value).encode()) >> 12 for value in values.values()]
    numbers = np.array([step, *checksums], np.float64)
    mean, mean_of_squares = (_worker_mean(strategy)(tf.constant(each)).numpy() for each in (numbers, numbers**2))
    same_step, *same_values = mean_of_squares == mean**2
    if not same_step:
        raise UserError(
            f"the workers resume at different steps, this one at step {step:,.0f} of {folder}; --output_dir must be a "
            "folder that all workers share"
        )
    if different := [name for name, is_same in zip(values, same_values, strict=True) if not is_same]:
        raise UserError(
            f"the workers were started with different {', '.join(different)}; start all of them with the same flags, "
            "except --worker_index, and the same files"
        )


@contextlib.contextmanager
def explain_lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """In this context, TensorFlow's error about a worker that stopped becomes a UserError with advice."""
    try:
        yield
    except _LOST_WORKER as error:
        if not is_multi_worker(strategy):
            raise
        reason = textwrap.shorten(shorten_error(error), 200)
        raise UserError(
            f"another worker stopped or cannot be reached ({reason}); start all workers again with the same command to "
            "resume from the last checkpoint"
        ) from error


def compiles_parts(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether XLA should compile only the operations between the matrix products of a training step.

    True on a single CPU, where TensorFlow's matrix products are faster than XLA's, but its other operations are slower.
    """
    is_cpu = isinstance(strategy, tf.distribute.OneDeviceStrategy) and "CPU" in strategy.extended.worker_devices[0]
    return is_cpu and importlib.util.find_spec("libtpu") is None  # TensorFlow on a TPU host has no XLA for CPUs.
