"""The flags of plan."""

import dataclasses
import math

from data_gen.options import TEXT, TextOptions
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.flags import option

TIME, PLAN = "time", "the plan"  # headings of --help


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TextOptions):
    """Which text, how long, and where the plan goes."""

    heldout_share: float = option(
        0.05, "The share of the text, by document, that is held out to be evaluated on.", group=TEXT
    )
    minutes: float | None = option(None, "How long all commands may take together, in minutes.", group=TIME)
    hours: float | None = option(None, "The same in hours.", group=TIME)
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
        if self.random_seed < 0:
            raise UserError(f"--random_seed is {self.random_seed}; expected at least 0")
        if not 0 < self.heldout_share < 1:
            raise UserError(f"--heldout_share is {self.heldout_share}; expected a share between 0 and 1")
        for name in ("input_file", "output_dir"):
            if not getattr(self, name):
                raise UserError(f"--{name} is empty; expected {'text files' if name == 'input_file' else 'a folder'}")
        if files.is_remote(self.output_dir):
            raise UserError(f"{self.output_dir} is not on this machine; plan where the commands will run")

    @property
    def seconds(self) -> float:
        """How long the commands may take together."""
        return 60 * self.minutes if self.minutes is not None else 3600 * (self.hours or 0.0)
