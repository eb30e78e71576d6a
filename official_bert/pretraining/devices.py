"""What a step takes on devices that are not there, by count: operations and bytes, divided by published rates.

configs/devices.json has the rates, and what the TPU's compiler counted in the steps of the paper's runs
(`python -m tools.tpu_check.scaling`). Nothing of it was measured. A v5e chip's rates are those that the TPU's
documentation publishes: of its links, four of 400 Gbit/s each way; 51.2 TB/s in an all-reduce of a pod's 256 chips.
"""

import dataclasses

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.configs import find_config

DEVICES_FILE = "configs/devices.json"

# The paper: 1M steps of 256 sequences, 90 % of 128 tokens with 20 predictions, 10 % of 512 with 77.
BATCH = 256
PHASES = ((128, 20, 900_000), (512, 77, 100_000))


@dataclasses.dataclass(frozen=True)
class Seconds:
    """What a step takes by published rates, of each kind.

    Attributes:
        operations: floating-point operations.
        traffic: all that is read and written, by the compiler's account.
        variables: weights and optimizer, read and written once.
        exchange: what devices send each other.
    """

    operations: float
    traffic: float
    variables: float
    exchange: float

    @property
    def least(self) -> float:
        return max(self.operations, self.variables, self.exchange)

    @property
    def accounted(self) -> float:
        return max(self.operations, self.traffic) + self.exchange


@dataclasses.dataclass(frozen=True)
class StepCount:
    """What the compiler counted in a device's share of a step of BATCH sequences."""

    model: str  # a file of configs/models, without its ending
    devices: int
    length: int
    micro_batches: int
    tflop: float
    traffic_gb: float
    exchanged_mb: float
    memory_gib: float


@dataclasses.dataclass(frozen=True)
class Device:
    """A device's published rates, and the steps that were counted for it."""

    flop_per_second: float  # in bfloat16
    memory_bytes_per_second: float
    link_bytes_per_second: float  # that it sends to others
    dollars_per_hour: float
    steps: list[StepCount]

    @classmethod
    def read(cls, name: str) -> "Device":
        """Reads the device of that name.

        Raises:
            UserError: the file is damaged.
        """
        path = find_config(DEVICES_FILE)
        held = files.read_json_object(path)
        try:
            return cls(**{**held[name], "steps": [StepCount(**step) for step in held[name]["steps"]]})
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} does not hold {name} as expected ({error!r}); restore the file") from error

    def seconds(self, flop: float, traffic: float, variables: float, exchanged: float, devices: int) -> Seconds:
        """Returns what a step takes on one of so many devices, from its operations and bytes."""
        return Seconds(
            operations=flop / self.flop_per_second,
            traffic=traffic / self.memory_bytes_per_second,
            variables=2 * variables / self.memory_bytes_per_second,
            exchange=2 * exchanged * (devices - 1) / devices / self.link_bytes_per_second,
        )
