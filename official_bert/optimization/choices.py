"""Names and flags for hardware, precision and optimizers. This module does not import TensorFlow.

distribution.py and optimizers.py create the objects.
"""

from typing import Any

from official_bert.utils.flags import HARDWARE, option

AUTO = "auto"  # value of --dtype: the faster of float32 and bfloat16
# Keras dtype policies by value of --dtype.
DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
STRATEGIES = ONE_DEVICE, MIRRORED, MULTI_WORKER, TPU = ("one_device", "mirrored", "multi_worker", "tpu")
OPTIMIZERS = ("adamw", "lamb", "keras_adamw")


def worker_hosts_option() -> Any:
    """Returns the flag --worker_hosts of the commands that train."""
    text = (
        "Comma-separated host:port of each worker, for multi_worker. Pass the same list on all workers. Defaults to "
        "TF_CONFIG or SLURM's variables."
    )
    return option([], text, group=HARDWARE, resumable=True)


def worker_index_option() -> Any:
    """Returns the flag --worker_index of the commands that train."""
    return option(
        None, "Index of this process in --worker_hosts, starting at 0.", min=0, group=HARDWARE, resumable=True
    )


def dtype_option() -> Any:
    """Returns the flag --dtype of the commands that train."""
    text = (
        "Precision of the layers. Weights, softmax and losses are always float32. float16 uses loss scaling. auto "
        "times a matrix product and selects float32 or bfloat16. A resumed run keeps the selection."
    )
    return option("float32", text, (*DTYPES, AUTO), group=HARDWARE)


def deterministic_option() -> Any:
    """Returns the flag --deterministic of the commands that train."""
    text = (
        "Use only deterministic operations, so that two runs on the same kind of device give the same bytes. Slower "
        "on GPUs."
    )
    return option(False, text, group=HARDWARE)
