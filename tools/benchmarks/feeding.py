"""How many records a second one machine feeds to a training step: `python -m tools.benchmarks.feeding`.

No step is taken: batches are read as run_pretraining reads them (records parsed, shuffled, masked, packed) and thrown
away. Beside each rate stands what a host's eight TPU v5e chips would take of BERT-Base.
"""

import dataclasses
import datetime
import os
import platform
import resource
import tempfile
import time

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine
from official_bert.errors import UserError
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks import corpus
from tools.benchmarks.pretraining import MODELS, ROOT

LENGTHS = {128: 20, 512: 77}  # and the predictions of a record
# Of TPU v5e: chips on a host, the published bfloat16 operations a second of each, and the share that is reached.
CHIPS, PEAK, USE = 8, 197e12, 0.5
_SEED = 1


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    text: list[str] = option([], "Text files or glob patterns; unless given, Python's own documentation.")
    vocab_file: str | None = option(None, "Their vocabulary; with --text only.")
    batch_size: int = option(256, "Records in a batch, of all chips together.")
    seconds: float = option(10.0, "For how long about each way is measured, after one window of the shuffle.")

    def __post_init__(self) -> None:
        if bool(self.text) != bool(self.vocab_file):
            raise UserError("--text and --vocab_file go together")


@dataclasses.dataclass(frozen=True)
class Way:
    """What happens to a record between its file and the step."""

    name: str
    masking: str = "static"
    packed: bool = False


WAYS = (
    Way("parsed"),
    Way("parsed, masked", masking="dynamic"),
    Way("parsed, masked, packed", masking="dynamic", packed=True),
)


@dataclasses.dataclass(frozen=True)
class Rate:
    """What was measured.

    Attributes:
        wall: records a second, with all processors.
        cpu: records in a second of processor time.
        taken: records a second that the chips would take.
    """

    wall: float
    cpu: float
    taken: float


def taken_a_second(length: int, records: int, rows: int) -> float:
    """Returns how many records a second the chips take.

    Args:
        length: of a row, in tokens.
        records: of a batch.
        rows: that a step computes for them; fewer where they are packed.
    """
    from official_bert.modeling.config import BertConfig
    from official_bert.pretraining.cost import training_flop

    config = BertConfig.from_json_file(str(ROOT / "configs" / "models" / f"{MODELS['base']}.json"))
    return records * CHIPS * PEAK * USE / training_flop(config, rows, length, LENGTHS[length])


def measure(path: str, way: Way, length: int, vocab_file: str, options: Options) -> Rate:
    """Reads batches of the records at a path for some seconds."""
    from official_bert.modeling.config import BertConfig
    from official_bert.pretraining.record_files import RecordFiles

    config = BertConfig.from_json_file(str(ROOT / "configs" / "models" / f"{MODELS['base']}.json"))
    found = RecordFiles.find(
        [path], "input_file", max_seq_length=length, max_predictions_per_seq=LENGTHS[length], config=config,
        vocab_file=vocab_file,
    )  # fmt: skip
    packing = found.packing(options.batch_size, _SEED, CHIPS, micro_batches=1) if way.packed else None
    batches = iter(found.training(options.batch_size, _SEED, 0, packing))
    # Records come in windows of 10,000, so that the rate is that of whole windows.
    window = -(-10_000 // options.batch_size)
    for _ in range(window):
        next(batches)
    count, before, start = 0, resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    while time.perf_counter() - start < options.seconds:
        for _ in range(window):
            next(batches)
        count += window * options.batch_size
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rows = packing.usual_rows if packing else options.batch_size
    return Rate(count / wall, count / used, taken_a_second(length, options.batch_size, rows))


def table(rates: dict[tuple[int, str], Rate]) -> str:
    """Returns a table in Markdown."""
    lines = [
        f"| length | records are | records/s | records/CPU-second | {CHIPS} chips take, records/s | processors |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {length} | {name} | {rate.wall:,.0f} | {rate.cpu:,.0f} | {rate.taken:,.0f} | {rate.taken / rate.cpu:.1f} |"
        for (length, name), rate in rates.items()
    ]
    return "\n".join(lines)


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text, vocab_file = options.text, options.vocab_file
        if vocab_file is None:
            _, text_file, vocab_file = corpus.write_text(folder)
            text = [text_file]
        rates = {}
        for length, predictions in LENGTHS.items():
            for masking in ("static", "dynamic"):
                one_machine.create_pretraining_data(
                    RecordOptions(
                        input_file=text, output_file=[f"{folder}/{length}-{masking}.tfrecord"], vocab_file=vocab_file,
                        max_seq_length=length, max_predictions_per_seq=predictions, masking=masking, dupe_factor=2,
                        num_shards=4,
                    )
                )  # fmt: skip
            for way in WAYS:
                path = f"{folder}/{length}-{way.masking}-*.tfrecord"
                rates[length, way.name] = measure(path, way, length, vocab_file, options)
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} processors")
    print(
        f"batches of {options.batch_size}; {CHIPS} TPU v5e chips at {USE:.0%} of {PEAK / 1e12:.0f} TFLOP/s, BERT-Base\n"
    )
    print(table(rates))


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.feeding",
        summary="Measures how many records a second one machine feeds to a training step.",
        main=main,
        options=(Options,),
        examples=("--seconds=10", "--text='text/*.txt' --vocab_file=vocab.txt"),
    ).run()
