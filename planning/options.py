"""The flags of plan."""

import dataclasses
import math

from data_gen.options import TEXT, TextOptions
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.flags import option

TIME, DEVICES, PLAN = "time", "devices", "the plan"  # headings of --help
COUNTED = (8, 64, 256)  # devices that configs/devices.json has steps for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TextOptions):
    """Which text, how long, and where the plan goes."""

    heldout_share: float = option(
        0.05, "The share of the text, by document, that is held out to be evaluated on.", group=TEXT
    )
    minutes: float | None = option(None, "How long all commands may take together, in minutes.", group=TIME)
    hours: float | None = option(None, "The same in hours.", group=TIME)
    devices: int | None = option(
        None, "How many devices to plan for in place of this machine: 8, 64 or 256.", group=DEVICES
    )
    device: str = option("v5e", "Their kind.", ("v5e",), group=DEVICES)
    device_tflops: float | None = option(
        None,
        "What one of them was measured to do in training, in TFLOP/s; without it the plan says between which bounds "
        "the hours lie by published rates.",
        group=DEVICES,
    )
    device_dollars: float | None = option(
        None, "What one of them costs in an hour.", group=DEVICES, shown_default="1.20"
    )
    output_dir: str = option(
        "plan", "Folder of the plan, and of all that its commands make; new, or this plan's.", group=PLAN
    )
    random_seed: int = option(12345, "The seed of everything random.", group=PLAN)
    json: bool = option(False, "Whether the plan is printed as one JSON object.", group=PLAN, free=True)
    run: bool = option(False, "Whether the plan's commands are run. Given again, goes on.", group=PLAN, free=True)

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.hours is None):
            both = "both are" if self.minutes is not None else "neither is"
            raise UserError(f"give --minutes or --hours, how long the commands may take; {both} given")
        if not 0 < self.seconds < math.inf:
            name, value = ("minutes", self.minutes) if self.hours is None else ("hours", self.hours)
            raise UserError(f"--{name} is {value}; expected a positive number")
        for name in ("device_tflops", "device_dollars"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"--{name} is {value}; expected a positive number")
            if value is not None and self.devices is None:
                raise UserError(f"--{name} is given without --devices; say how many there are")
        if self.devices not in (None, *COUNTED):
            known = ", ".join(map(str, COUNTED))
            raise UserError(f"--devices is {self.devices}; expected one of {known}, for which steps were counted")
        if self.devices is not None and self.run:
            raise UserError("--run is given with --devices; give the commands where the devices are")
        if self.random_seed < 0:
            raise UserError(f"--random_seed is {self.random_seed}; expected at least 0")
        if not 0 < self.heldout_share < 1:
            raise UserError(f"--heldout_share is {self.heldout_share}; expected a share between 0 and 1")
        for name in ("input_file", "output_dir"):
            if not getattr(self, name):
                raise UserError(f"--{name} is empty; expected {'text files' if name == 'input_file' else 'a folder'}")
        if "," in self.output_dir:
            raise UserError(f"--output_dir is {self.output_dir}; expected no comma: it separates files in the commands")
        if files.is_remote(self.output_dir):
            raise UserError(f"{self.output_dir} is not on this machine; plan where the commands will run")

    @property
    def seconds(self) -> float:
        """How long the commands may take together."""
        return 60 * self.minutes if self.minutes is not None else 3600 * (self.hours or 0.0)
