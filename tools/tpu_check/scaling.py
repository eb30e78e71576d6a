"""What pre-training as in the paper takes on v5e chips by count: `make tpu-scaling`. Nothing is measured.

Each program is compiled, and its operations, its traffic with memory and what it exchanges are divided by the chip's
published rates (configs/devices.json).
"""

import os

# Before TensorFlow is imported: its TPU build would look for a TPU, and wait for a server that only TPU hosts have.
os.environ["TPU_LIBRARY_PATH"] = os.devnull

import dataclasses
from collections.abc import Sequence

from official_bert.errors import UserError
from official_bert.pretraining.devices import BATCH, PHASES, Device, Seconds
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.tpu_check.answers import Compiled, Refused, as_table
from tools.tpu_check.options import PretrainingStepOptions

ASSUMPTIONS = """\
- 256 sequences in a step over all chips, in bfloat16, with the original's optimizer, in as few micro-batches as fit.
- Each number of chips has a program of its own, compiled with little effort, which asks for some more memory than
  training will.
- Operations at 197 TFLOP/s, memory at 819 GB/s, and links of 1,600 Gbit/s a chip, as in a pod's torus; at the edges of
  smaller slices chips have fewer. To sum n bytes over c chips, each sends 2 n (c - 1) / c.
- The traffic with memory is the compiler's account: what each operation reads and writes, also where that stays on the
  chip, and the optimizer's once for each micro-batch.
- The first time of a step is the longest of operations, of weights and optimizer read and written once, and of the
  exchange, as if all were at the same time. The second is the longer of operations and traffic, and then the exchange.
- Nothing is lost to the input, to latency, or to matrices that do not fill the units."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Which models, on how many chips."""

    bert_config_files: list[str] = option(
        ["configs/models/uncased_L-12_H-768_A-12.json", "configs/models/uncased_L-24_H-1024_A-16.json"],
        "The models' bert_config.json.",
    )
    chips: list[str] = option(["8", "64", "256"], "Numbers of v5e chips, each a divisor of 256.")
    time_limit: int = option(1200, "Seconds that the compiler may take for a program.")

    def __post_init__(self) -> None:
        for number in self.chips:
            if not number.isdigit() or not int(number) or BATCH % int(number):
                raise UserError(f"--chips names {number}; expected divisors of {BATCH}, the sequences in a step")


def seconds_of_step(step: Compiled, chips: int) -> Seconds:
    """Returns what a replica's program takes on one of so many chips."""
    exchanged = sum(size for _, _, size in step.collectives)
    device = Device.read("v5e")
    return device.seconds(step.flops, step.bytes_accessed, step.variable_bytes, exchanged, chips)


def rows_of(name: str, chips: int, phases: Sequence[tuple[int, Compiled | Refused | str]]) -> list[tuple[str, ...]]:
    """Returns the table's rows of a model on some chips: one for each phase, and the whole run in the last one.

    Args:
        name: of the model.
        chips: how many.
        phases: for each the micro-batches of a chip, and what the compiler says of the step, or why it says nothing.
    """
    rows, least, accounted = [], 0.0, 0.0
    for (length, _, steps), (parts, step) in zip(PHASES, phases, strict=True):
        sequences = str(BATCH // chips) if parts == 1 else f"{parts} x {BATCH // chips // parts}"
        head = (name, str(chips), str(length), sequences)
        if not isinstance(step, Compiled):
            reason = f"does not fit: {step}" if isinstance(step, Refused) else step
            rows.append((*head, *["-"] * 7, reason))
            continue
        seconds = seconds_of_step(step, chips)
        least, accounted = least + steps * seconds.least, accounted + steps * seconds.accounted
        times = (seconds.operations, seconds.traffic, seconds.exchange)
        rows.append((
            *head, f"{step.flops / 1e12:.3f}", f"{step.bytes_accessed / 1e9:.1f}",
            f"{sum(size for _, _, size in step.collectives) / 1e6:,.0f}", f"{step.peak_bytes / 2**30:.2f}",
            *(f"{1e3 * time:.2f}" for time in times),
            f"{1e3 * seconds.least:.2f} - {1e3 * seconds.accounted:.2f}",
        ))  # fmt: skip
    is_known = all(isinstance(step, Compiled) for _, step in phases)
    whole = f"{least:,.0f} - {accounted:,.0f}" if is_known else "-"
    return [*((*row, "") for row in rows[:-1]), (*rows[-1], whole)]


HEAD = (
    "model", "chips", "length", "sequences a chip", "TFLOP", "traffic, GB", "exchanged, MB", "memory, GiB",
    "operations, ms", "traffic, ms", "exchange, ms", "step, ms", "the paper's run, s",
)  # fmt: skip


def run(options: Options) -> int:
    """Compiles every program and prints the table; returns how many are not known."""
    unknown, table = 0, list[tuple[str, ...]]()
    for path in options.bert_config_files:
        for chips in map(int, options.chips):
            answers = [_compiled(path, chips, *phase[:2], options.time_limit) for phase in PHASES]
            unknown += sum(not isinstance(answer, Compiled) for _, answer in answers)
            rows = rows_of(os.path.basename(path).removesuffix(".json"), chips, answers)
            print(as_table([HEAD, *rows]), flush=True)
            table += rows
    print(f"\n{as_table([HEAD, *table])}\n\n{ASSUMPTIONS}")
    return unknown


def _compiled(
    path: str, chips: int, length: int, predictions: int, time_limit: int
) -> tuple[int, Compiled | Refused | str]:
    """The micro-batches of a chip, as few as fit, and what the compiler says of a step with so many."""
    from tools.tpu_check import compiler, steps  # late: they import TensorFlow
    from tools.tpu_check.command import OUT_OF_TIME, StepCompiler
    from tools.tpu_check.recipes import LAYOUTS

    of_tpu = StepCompiler(f"v5e:{LAYOUTS['v5e'][chips]}", time_limit)
    parts, batch = 1, BATCH // chips
    while True:
        step_options = PretrainingStepOptions(
            bert_config_file=path, max_seq_length=length, max_predictions_per_seq=predictions,
            train_batch_size=BATCH, dtype="bfloat16", gradient_accumulation_steps=parts,
        )  # fmt: skip
        step, _ = steps.pretraining_step(steps.read_config(step_options), step_options, chips)
        try:
            answer: Compiled | Refused | str = of_tpu.compiled(step, batch, quickly=True)
        except compiler.OutOfTimeError:
            answer = OUT_OF_TIME
        if not isinstance(answer, Refused) or parts == batch:
            return parts, answer
        parts *= 2


if __name__ == "__main__":
    Command(
        program="python -m tools.tpu_check.scaling",
        summary="Counts what pre-training as in the paper would take on v5e chips, from compiled programs.",
        main=run,
        options=(Options,),
    ).run()
