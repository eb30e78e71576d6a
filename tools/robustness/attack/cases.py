"""A case: one or several attempts of an attack, and their outcome."""

import dataclasses
import functools
import pathlib
import random


class NotHeldError(Exception):
    """The program did not withstand an attack. The message describes what was observed."""


@dataclasses.dataclass
class Case:
    """One attempt, or a series of attempts, to break a program. Seed, kind and number determine its random choices.

    Attributes:
        kind: Kind of attack.
        number: Number of the case within its kind.
        seed: Seed of all cases.
        folder: An empty folder for this case.
        samples: The folder with the samples.
        what: What is attacked and how: a row of the table.
        done: Details of what was done, shown if the program does not hold.
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
        """The random generator for all choices of the case."""
        return random.Random(f"{self.seed} {self.kind} {self.number}")
