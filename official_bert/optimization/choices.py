"""Names and flags for hardware, precision and optimizers. This module does not import TensorFlow.

distribution.py and optimizers.py create the objects.
"""

import dataclasses
import functools
from typing import Any

from official_bert.errors import UserError
from official_bert.utils.flags import HARDWARE, TRAINING, option

AUTO = "auto"  # value of --dtype: the faster of float32 and bfloat16
# Keras dtype policies by value of --dtype.
DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
STRATEGIES = ONE_DEVICE, MIRRORED, MULTI_WORKER, TPU = ("one_device", "mirrored", "multi_worker", "tpu")
OPTIMIZERS = ("adamw", "lamb", "keras_adamw")

_device = functools.partial(option, group=HARDWARE, resumable=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamOptions:
    """The optimizer flags of the commands that train.

    The names are the same as in Hugging Face, and the defaults are the same as in the original.
    """

    adam_bias_correction: bool = option(
        False,
        "Correct the bias of adamw's moments. The original BERT does not; the other optimizers always do.",
        group=TRAINING,
    )
    weight_decay: float = option(
        0.01, "Weight decay of all weights except biases and layer normalization.", group=TRAINING, min=0
    )
    adam_beta1: float = option(0.9, "Decay rate of the mean of the gradients.", group=TRAINING, min=0, below=1)
    adam_beta2: float = option(0.999, "Decay rate of the mean of squared gradients.", group=TRAINING, min=0, below=1)
    adam_epsilon: float = option(
        1e-6, "Number added to the root of the mean of squared gradients.", group=TRAINING, above=0
    )
    max_grad_norm: float = option(
        1.0, "Maximum global norm of the gradients. 0 disables clipping.", group=TRAINING, min=0
    )

    @property
    def optimizer_settings(self) -> dict[str, Any]:
        """The arguments of optimizers.get_optimizer that these flags set."""
        return {
            "adam_bias_correction": self.adam_bias_correction,
            "weight_decay_rate": self.weight_decay,
            "beta_1": self.adam_beta1,
            "beta_2": self.adam_beta2,
            "epsilon": self.adam_epsilon,
            "clip_norm": self.max_grad_norm or None,
        }


def dtype_option() -> Any:
    """Creates the flag --dtype for the commands that train."""
    text = (
        "Precision of the layers. Weights, softmax and losses are always float32. float16 uses loss scaling. auto "
        "times a matrix product and selects float32 or bfloat16. A resumed run keeps the selection."
    )
    return option("float32", text, (*DTYPES, AUTO), group=HARDWARE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The flags of the commands pretrain and finetune for devices, memory and precision."""

    distribution_strategy: str = _device(
        ONE_DEVICE,
        "Devices to use: one_device (the first GPU, or the CPU), mirrored (all GPUs of this machine), multi_worker "
        "(all devices of several machines) or tpu.",
        STRATEGIES,
    )
    worker_hosts: list[str] = _device(
        [],
        "Comma-separated host:port of each worker, for multi_worker. Pass the same list on all workers. Defaults to "
        "TF_CONFIG or SLURM's variables.",
    )
    worker_index: int | None = _device(None, "Index of this process in --worker_hosts, starting at 0.", min=0)
    use_tpu: bool = _device(False, "Same as --distribution_strategy=tpu.")
    tpu_name: str | None = _device(None, "Name or gRPC address of the TPU. Defaults to the TPU of this VM.")
    tpu_zone: str | None = _device(None, "Zone of the TPU.")
    gcp_project: str | None = _device(None, "Google Cloud project of the TPU.")
    dtype: str = dtype_option()
    gradient_accumulation_steps: int = option(
        1,
        "Number of parts that each batch is split into, to save memory. The batch size and the step stay the same.",
        min=1,
        group=HARDWARE,
    )
    deterministic: bool = option(
        False,
        "Use only deterministic operations, so that two runs on the same kind of device give the same bytes. Slower "
        "on GPUs.",
        group=HARDWARE,
    )

    @property
    def strategy(self) -> str:
        """The name of the distribution strategy that the flags choose."""
        return TPU if self.use_tpu else self.distribution_strategy

    def check_devices(self) -> None:
        """Raises a UserError if the flags select two distribution strategies."""
        if self.use_tpu and self.distribution_strategy not in (ONE_DEVICE, TPU):
            raise UserError(
                f"--use_tpu cannot be combined with --distribution_strategy={self.distribution_strategy}; remove one"
            )
