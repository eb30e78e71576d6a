"""A case of an attack."""

import dataclasses
import functools
import pathlib
import random


class NotHeldError(Exception):
    """The program did not withstand an attack. The message describes what was observed."""


@dataclasses.dataclass
class Case:
    """An attempt, or a series of attempts, that a seed and a number determine.

    Attributes:
        kind: Kind of attack.
        number: Number of the case within its kind.
        seed: Seed of the campaign.
        folder: An empty folder for this case.
        samples: The folder with the samples.
        what: What is attacked and how, shown as a row of the table.
        done: What exactly was done, shown if the case is not held.
        tried: Number of attempts made.
        error: Why the program did not hold, or "" if it held.
        seconds: How long the case took.
    """

    kind: str
    number: int
    seed: int
    folder: pathlib.Path
    samples: pathlib.Path
    what: str = ""
    done: str = ""
    tried: int = 1
    error: str = ""
    seconds: float = 0.0

    @functools.cached_property
    def rng(self) -> random.Random:
        """The source of all random choices of the case."""
        return random.Random(f"{self.seed} {self.kind} {self.number}")
