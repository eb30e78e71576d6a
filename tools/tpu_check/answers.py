"""What the compiler said, in numbers and in words."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

_GIB = 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": _GIB, "T": 2**40}
# The compiler gives up at one of several places, each with words of its own.
_REFUSALS = (
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
    re.compile(r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
)
_COLLECTIVE = re.compile(
    r" = (\([^()]*(?:\([^()]*\)[^()]*)*\)|\S+) "  # the result: an array, or several, with layouts like T(8,128)
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_ARRAY = re.compile(r"(pred|[a-z]+(\d+))\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A step of one replica that the TPU's memory has room for.

    Attributes:
        device: what the compiler calls the TPU.
        flops: floating-point operations.
        peak_bytes: the most memory in use at once, weights and optimizer included.
        variable_bytes: memory of weights and optimizer.
        collectives: kind, number of operations and bytes of what is exchanged between replicas.
    """

    device: str
    flops: float
    peak_bytes: int
    variable_bytes: int
    collectives: list[tuple[str, int, int]]

    @property
    def memory(self) -> str:
        return f"peak memory {self.peak_bytes / _GIB:.2f} GiB"

    def __str__(self) -> str:
        exchanged = ", ".join(f"{number} {kind} of {size / 1e6:,.1f} MB" for kind, number, size in self.collectives)
        return (
            f"{self.flops / 1e12:,.2f} TFLOP, {self.memory} (weights and optimizer "
            f"{self.variable_bytes / _GIB:.2f}), exchanged between replicas: {exchanged or 'nothing'}"
        )


@dataclasses.dataclass(frozen=True)
class Refused:
    """A step that needs more memory than the TPU has.

    Attributes:
        needed_bytes: by the compiler's account.
        available_bytes: the TPU's memory, less what it keeps for itself.
    """

    needed_bytes: int
    available_bytes: int

    def __str__(self) -> str:
        return f"needs {self.needed_bytes / _GIB:.2f} GiB of {self.available_bytes / _GIB:.2f}"


def refusal(message: str) -> Refused | None:
    """Returns what a compiler's error says of memory, or None where it is about something else."""
    for pattern in _REFUSALS:
        if found := pattern.search(message):
            needed, needed_unit, available, available_unit = found.groups()
            return Refused(round(float(needed) * _UNITS[needed_unit]), round(float(available) * _UNITS[available_unit]))
    return None


def collectives(hlo: str) -> list[tuple[str, int, int]]:
    """Returns kind, number and result bytes of the operations between replicas in the text of an HLO module."""
    counts: dict[str, tuple[int, int]] = {}
    for result, kind in _COLLECTIVE.findall(hlo):
        number, size = counts.get(kind, (0, 0))
        counts[kind] = number + 1, size + sum(map(_bytes, _ARRAY.findall(result)))
    return [(kind, *counts[kind]) for kind in sorted(counts)]


def _bytes(array: tuple[str, str, str]) -> int:
    _, bits, shape = array
    return math.prod(int(size) for size in shape.split(",") if size) * int(bits or 8) // 8


def cells_of(answer: Compiled | Refused | str, batch: int) -> tuple[str, str, str, str, str]:
    """Returns the cells of a table: rows of a replica, TFLOP, GiB of memory, what is exchanged, and whether it fits.

    Args:
        answer: of the compiler, or why there is none.
        batch: rows of a replica.
    """
    if not isinstance(answer, Compiled):
        return f"{batch:,}", "-", "-", "-", f"no: {answer}" if isinstance(answer, Refused) else answer
    exchanged = ", ".join(f"{number} {kind}: {size / 1e6:,.0f} MB" for kind, number, size in answer.collectives)
    memory = f"{answer.peak_bytes / 2**30:.2f}"
    return f"{batch:,}", f"{answer.flops / 1e12:.2f}", memory, exchanged or "nothing", "yes"


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def largest_fitting(fits: Callable[[int], bool], start: int) -> int:
    """Returns the largest batch that fits, to an eighth, or 0 if not even one record does.

    Batches are doubled from `start` up to one that does not fit (or halved down to one that does), then bisected.

    Args:
        fits: whether a batch fits; where one does, all smaller ones do.
        start: the batch to begin with, at least 1.
    """
    low, high = 0, 0  # fits, does not fit
    batch = start
    while not (low and high):
        if fits(batch):
            low, batch = batch, 2 * batch
        else:
            high, batch = batch, batch // 2
            if not batch:
                return 0
    unit = max(1, 2 ** (low.bit_length() - 1) // 8)
    while high - low > unit:
        middle = (low + high) // 2 // unit * unit
        if middle <= low:
            middle += unit
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
