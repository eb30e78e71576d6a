"""A name to a tf.distribute strategy, and what several workers agree on; nothing else knows the device."""

import contextlib
import functools
import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from official_bert.errors import UserError
from official_bert.optimization.choices import MIRRORED, MULTI_WORKER, ONE_DEVICE, STRATEGIES, TPU

_TF_CONFIG = "TF_CONFIG"  # TensorFlow's own
_NO_TPU_KERNELS = "No OpKernel was registered to support Op 'ConfigureDistributedTPU'"  # in its error
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
    """Returns the strategy of that name.

    Args:
        name: "one_device" (the first GPU, else the CPU), "mirrored" (all devices of this machine), "multi_worker" (all
            devices of several machines), or "tpu".
        tpu_name: the TPU's name or grpc address; None or "local" for a TPU VM's own.
        tpu_zone: the TPU's zone; None where it can be detected.
        gcp_project: the project the TPU belongs to, likewise.
        worker_hosts: host:port of each worker, for "multi_worker". Without them the environment variable TF_CONFIG or
            else SLURM's variables say them.
        worker_index: which of them this process is.

    Raises:
        UserError: the name is unknown, there is no such device, or the workers contradict themselves.
    """
    set_workers(name, worker_hosts, worker_index)
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
    except (ValueError, OSError, ImportError, tf.errors.OpError) as error:  # the second and third: of cloud services
        if _NO_TPU_KERNELS in str(error):
            reason = "TensorFlow has no support for TPUs here, which the package tensorflow-tpu on a TPU's host has"
        else:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"no TPU {name!r} could be reached: {reason}; give --tpu_name, with --tpu_zone and --gcp_project where "
            "they are not this machine's, or another --distribution_strategy (without --use_tpu)"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def set_workers(name: str, worker_hosts: Sequence[str], worker_index: int | None) -> None:
    """Sets the environment variable TF_CONFIG, by which TensorFlow finds the workers, where a flag or SLURM says them.

    Arguments are as for `get_strategy`; the hosts' order is the same for all workers.

    Raises:
        UserError: hosts and index do not go together or contradict TF_CONFIG, or SLURM's variables cannot be used.
    """
    if name != MULTI_WORKER:
        if worker_hosts or worker_index is not None:
            raise UserError(f"--worker_hosts and --worker_index go with --distribution_strategy={MULTI_WORKER}")
        return
    before = os.environ.get(_TF_CONFIG)
    if worker_hosts:
        hosts, index = _checked_workers(worker_hosts, worker_index)
    elif worker_index is not None:
        raise UserError(f"--worker_index={worker_index} needs --worker_hosts, whose number it is")
    elif before is None and os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        hosts, index = _slurm_workers()
    else:
        return
    config = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
    if before not in (None, config):
        raise UserError(f"--worker_hosts contradicts the environment variable {_TF_CONFIG}; give one of the two")
    os.environ[_TF_CONFIG] = config


def _checked_workers(hosts: Sequence[str], index: int | None) -> tuple[list[str], int]:
    addresses = [host.rpartition(":") for host in hosts]
    if not all(host and port.isdigit() for host, _, port in addresses) or len(set(hosts)) < len(hosts):
        raise UserError(f"--worker_hosts={','.join(hosts)}: expected different addresses, as in host0:2222,host1:2222")
    if index is None or not 0 <= index < len(hosts):
        shown = "missing" if index is None else index
        raise UserError(f"--worker_index is {shown}; expected 0 to {len(hosts) - 1}, of --worker_hosts the one here")
    return list(hosts), index


def _slurm_workers() -> tuple[list[str], int]:
    """The workers of a step of SLURM, one a task, by its environment variables; and which of them this process is."""
    tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
    try:
        # Which GPUs a task sees is left to SLURM; the resolver would count them with nvidia-smi, and share them out.
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False
        )
        hosts = [str(host) for host in resolver.cluster_spec().as_dict()["worker"]]
    except (RuntimeError, ValueError) as error:
        raise UserError(f"SLURM's variables do not say the workers: {error}; give --worker_hosts") from error
    index = int(resolver.task_id)
    # The resolver sorts hosts by name; SLURM counts its tasks in its own order, in which n2 comes before n10.
    here = os.environ.get("SLURMD_NODENAME")
    if here and hosts[index].rpartition(":")[0] != here:
        raise UserError(
            f"SLURM runs task {index} on {here}, and TensorFlow's resolver takes it for {hosts[index]}, because it "
            f"sorts the hosts by name ({', '.join(hosts)}); give --worker_hosts and --worker_index=$SLURM_PROCID"
        )
    return hosts, index


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
    return is_cpu and importlib.util.find_spec("libtpu") is None  # the TensorFlow of a TPU's host has no XLA for it
