"""What a flag may choose of hardware, precision and optimizer, by name. Importing this needs no TensorFlow.

distribution.py and optimizers.py turn the names into objects.
"""

from typing import Any

from official_bert.utils.flags import HARDWARE, option

# A flag's name of a precision: the Keras dtype policy.
AUTO = "auto"  # As --dtype: the faster of float32 and bfloat16.
DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
STRATEGIES = ONE_DEVICE, MIRRORED, MULTI_WORKER, TPU = ("one_device", "mirrored", "multi_worker", "tpu")
OPTIMIZERS = ("adamw", "lamb", "keras_adamw")


def worker_hosts_option() -> Any:
    """Returns the flag --worker_hosts of the commands that train."""
    text = (
        "host:port of each worker, the same list for all, for multi_worker; without it TF_CONFIG or SLURM's variables."
    )
    return option([], text, group=HARDWARE, resumable=True)


def worker_index_option() -> Any:
    """Returns the flag --worker_index, which goes with it."""
    return option(None, "Which of --worker_hosts this process is, from 0.", min=0, group=HARDWARE, resumable=True)


def dtype_option() -> Any:
    """Returns the flag --dtype of the commands that train."""
    text = (
        "Precision of the layers; weights, softmax and losses are float32. With float16 the loss is scaled. auto times "
        "a matrix product in float32 and bfloat16 and uses the faster one; a resumed run keeps it."
    )
    return option("float32", text, (*DTYPES, AUTO), group=HARDWARE)


def deterministic_option() -> Any:
    """Returns the flag --deterministic of the commands that train."""
    text = (
        "Whether TensorFlow takes its deterministic operations alone, by which two runs on devices of one kind give "
        "the same bytes; on GPUs they are slower."
    )
    return option(False, text, group=HARDWARE)
