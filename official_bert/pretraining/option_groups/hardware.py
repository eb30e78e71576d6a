"""Where a run computes, how precisely, and what is compiled."""

import dataclasses

from official_bert.errors import UserError
from official_bert.optimization.choices import (
    DTYPES,
    ONE_DEVICE,
    STRATEGIES,
    TPU,
    worker_hosts_option,
    worker_index_option,
)
from official_bert.utils.flags import HARDWARE, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareOptions:
    """The flags about devices and precision."""

    distribution_strategy: str = option(
        ONE_DEVICE,
        "Where to run: one device, all of this machine, many machines, a TPU.",
        STRATEGIES,
        group=HARDWARE,
        free=True,
    )
    worker_hosts: list[str] = worker_hosts_option()
    worker_index: int | None = worker_index_option()
    dtype: str = option(
        "float32", "Of the computation; weights, softmax and losses are float32.", tuple(DTYPES), group=HARDWARE
    )
    jit_compile: bool = option(
        False, "Whether XLA compiles the step (one device only; TPUs always do).", group=HARDWARE, free=True
    )
    compile_parts: bool = option(
        True,
        "Whether XLA compiles all but the products of matrices on one CPU; --jit_compile compiles those too.",
        group=HARDWARE,
        free=True,
    )
    rematerialize: bool = option(
        False, "Whether encoder blocks are computed twice: less memory, more time.", group=HARDWARE, free=True
    )
    iterations_per_loop: int = option(1000, "The most steps in one call to the devices.", group=HARDWARE, free=True)
    use_tpu: bool = option(False, "Short for --distribution_strategy=tpu.", group=HARDWARE, free=True)
    tpu_name: str | None = option(
        None, "The TPU's name or grpc address; by default the one of this TPU VM.", group=HARDWARE, free=True
    )
    tpu_zone: str | None = option(None, "The TPU's zone.", group=HARDWARE, free=True)
    gcp_project: str | None = option(None, "The project the TPU belongs to.", group=HARDWARE, free=True)
    num_tpu_cores: int | None = option(
        None, "The number of TPU cores to expect; an error if there are others.", group=HARDWARE, free=True
    )

    @property
    def strategy(self) -> str:
        """The name of the distribution strategy."""
        return TPU if self.use_tpu else self.distribution_strategy

    def check_hardware(self) -> None:
        """Raises a UserError if flags about devices contradict each other."""
        if self.use_tpu and self.distribution_strategy not in (ONE_DEVICE, TPU):
            raise UserError(f"--use_tpu and --distribution_strategy={self.distribution_strategy} exclude each other")
        if self.strategy == TPU and self.dtype == "float16":
            raise UserError("--dtype is float16, which is for GPUs; a TPU computes in bfloat16")
