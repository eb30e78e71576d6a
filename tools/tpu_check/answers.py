"""The results of the TPU's compiler, and their descriptions."""

import dataclasses
import math
import re
from collections.abc import Callable

_GIB = 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": _GIB, "T": 2**40}
# The compiler reports a lack of memory in one of several places, each with its own wording.
_REFUSALS = (
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
    re.compile(r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
)
_COLLECTIVE = re.compile(
    r" = (\([^()]*(?:\([^()]*\)[^()]*)*\)|\S+) "  # The result: one or more arrays, with layouts such as T(8,128).
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_ARRAY = re.compile(r"(pred|[a-z]+(\d+))\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's result for a step that fits into the TPU's memory. All figures are for one replica.

    Attributes:
        device: The compiler's name of the TPU.
        flops: Number of floating-point operations.
        peak_bytes: Peak memory in bytes, including weights and optimizer state.
        variable_bytes: Memory of the weights and optimizer state in bytes.
        collectives: Kind, number and result bytes of the operations between replicas, such as all-reduce.
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
    """The compiler's result for a step that needs more memory than the TPU has.

    Attributes:
        needed_bytes: Bytes that the step needs, according to the compiler.
        available_bytes: Bytes of the TPU's memory, without the part that it reserves.
    """

    needed_bytes: int
    available_bytes: int

    def __str__(self) -> str:
        return f"needs {self.needed_bytes / _GIB:.2f} GiB of {self.available_bytes / _GIB:.2f}"


def parse_refusal(message: str) -> Refused | None:
    """Parses the compiler's out-of-memory message. Returns None if the message is about another error."""
    for pattern in _REFUSALS:
        if found := pattern.search(message):
            needed, needed_unit, available, available_unit = found.groups()
            return Refused(round(float(needed) * _UNITS[needed_unit]), round(float(available) * _UNITS[available_unit]))
    return None


def parse_collectives(hlo: str) -> list[tuple[str, int, int]]:
    """Returns kind, number and result bytes of the operations between replicas, from the text of an HLO module."""
    counts: dict[str, tuple[int, int]] = {}
    for result, kind in _COLLECTIVE.findall(hlo):
        number, size = counts.get(kind, (0, 0))
        counts[kind] = number + 1, size + sum(map(_get_size, _ARRAY.findall(result)))
    return [(kind, *counts[kind]) for kind in sorted(counts)]


def _get_size(array: tuple[str, str, str]) -> int:
    _, bits, shape = array
    return math.prod(int(size) for size in shape.split(",") if size) * int(bits or 8) // 8


def format_cells(answer: Compiled | Refused | str, batch: int) -> tuple[str, str, str, str, str]:
    """Returns the cells of a table row: rows per replica, TFLOP, memory in GiB, bytes exchanged, and whether it fits.

    Args:
        answer: The compiler's result, or the reason why it is missing.
        batch: Number of rows per replica.
    """
    if not isinstance(answer, Compiled):
        return f"{batch:,}", "-", "-", "-", f"no: {answer}" if isinstance(answer, Refused) else answer
    exchanged = ", ".join(f"{number} {kind}: {size / 1e6:,.0f} MB" for kind, number, size in answer.collectives)
    memory = f"{answer.peak_bytes / 2**30:.2f}"
    return f"{batch:,}", f"{answer.flops / 1e12:.2f}", memory, exchanged or "nothing", "yes"


def find_largest_batch(fits: Callable[[int], bool], start: int) -> int:
    """Returns the largest batch size that fits, to within an eighth, or 0 if a batch size of 1 does not fit.

    The batch size is doubled from `start` until it does not fit (or halved until it fits), then bisected.

    Args:
        fits: Function that returns whether a batch size fits. If it does, all smaller sizes must fit as well.
        start: First batch size to try, at least 1.
    """
    low, high = 0, 0  # Largest size that fits, smallest size that does not.
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
