"""What is attacked: small text, records, models, tables and exports, and the commands that go on after a stop."""

import dataclasses
import hashlib
import json
import os
import pathlib
import random
import time
from collections.abc import Callable

from robustness.attack import processes
from robustness.attack.processes import NotHeldError
from tests.conftest import WORDS

LENGTH, PREDICTIONS = 32, 5
_CONFIG = {"vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
           "intermediate_size": 16, "max_position_embeddings": LENGTH}  # fmt: skip
_PLAIN_WORDS = [word for word in WORDS if word[0] not in "[#,.!?"]
_WITHOUT_DECISION = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")  # tensors that the number of saves decides

VOCAB, CONFIG, TEXTS, TABLE, QUERIES, LINES = (
    "vocab.txt", "config.json", ("text0.txt", "text1.txt"), "table.csv", "queries.jsonl", "lines.txt",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that goes on after a stop.

    Attributes:
        name: as official_bert_cli has it.
        needs: the samples that it reads.
        arguments: its flags, from the folder of the samples and the folder to write into.
        result: what must be the same after whatever happened, from the folder that was written into.
    """

    name: str
    needs: tuple[str, ...]
    arguments: Callable[[pathlib.Path, pathlib.Path], list[str]]
    result: Callable[[pathlib.Path], dict[str, str]]


def _digests(folder: pathlib.Path) -> dict[str, str]:
    """The digest of each file that is not a hidden or working one."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if ".writing-" not in path.name}


def _losses(folder: pathlib.Path, name: str) -> dict[str, str]:
    kept = ("loss", "learning_rate", "accuracy")
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return {
        f"{name}, step {line['step']}": str([(key, line[key]) for key in line if key.split("/")[-1] in kept])
        for line in lines
    }


def _bundle(folder: pathlib.Path) -> dict[str, str]:
    from official_bert.checkpoints import bundle

    newest = bundle.newest_first(str(folder))[0]
    source = bundle.open_bundle(newest)
    names = [name for name in sorted(source.shapes) if not name.startswith(_WITHOUT_DECISION)]
    return {"newest": os.path.basename(newest)} | {
        name: hashlib.sha256(source.read(name).tobytes()).hexdigest() for name in names
    }


def _pretrained(folder: pathlib.Path) -> dict[str, str]:
    return _bundle(folder / "run") | _losses(folder / "run", "train.jsonl")


def _tuned(folder: pathlib.Path) -> dict[str, str]:
    import h5py

    run, values = folder / "run", {}
    with h5py.File(run / "model.weights.h5") as weights:
        weights.visititems(
            lambda name, item: (
                values.update({name: hashlib.sha256(item[()].tobytes()).hexdigest()})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    plain = ["task.json", "vocab.txt", "bert_config.json"]
    values |= {name: (run / name).read_text() for name in plain}
    return values | _losses(run, "train.jsonl") | _losses(run, "eval.jsonl")


MAKE_RECORDS = Command(
    "make-records",
    (),
    lambda given, out: [
        f"--input_file={','.join(str(given / name) for name in TEXTS)}", f"--output_file={out}/train.tfrecord",
        "--num_shards=2", f"--vocab_file={given / VOCAB}", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}", "--dupe_factor=2", "--block_tokens=1000", "--num_workers=2",
    ],
    _digests,
)  # fmt: skip
PRETRAIN = Command(
    "pretrain",
    ("make-records",),
    lambda given, out: [
        "--do_train",
        f"--input_file={','.join(f'{given}/make-records/train-0000{number}-of-00002.tfrecord' for number in range(2))}",
        f"--output_dir={out}/run", f"--bert_config_file={given / CONFIG}", f"--vocab_file={given / VOCAB}",
        f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}", "--train_batch_size=8",
        "--num_train_steps=24", "--num_warmup_steps=2", "--learning_rate=0.01", "--save_checkpoints_steps=3",
        "--log_steps=1", "--keep_checkpoint_max=3", "--nocompile_parts",
    ],
    _pretrained,
)  # fmt: skip
FINETUNE = Command(
    "finetune",
    ("make-records", "pretrain"),
    lambda given, out: [
        "--task=table", f"--init={given}/pretrain/run", f"--train_file={given / TABLE}", f"--eval_file={given / TABLE}",
        "--do_train", "--do_eval", f"--output_dir={out}/run", "--num_train_epochs=3", "--train_batch_size=8",
        "--max_seq_length=16", "--eval_steps=4", "--learning_rate=0.01", "--log_steps=1",
    ],
    _tuned,
)  # fmt: skip
PREDICT = Command(
    "predict",
    ("make-records", "pretrain", "finetune", "export"),
    lambda given, out: [
        f"--export_dir={given}/export", f"--input_file={given / QUERIES}", f"--output_file={out}/answers.jsonl",
        "--batch_size=2",
    ],
    _digests,
)  # fmt: skip
FEATURES = Command(
    "features",
    ("make-records", "pretrain"),
    lambda given, out: [
        f"--init={given}/pretrain/run", f"--input_file={given / LINES}", f"--output_file={out}/vectors.npy",
        "--layers=-1", f"--max_seq_length={LENGTH}", "--batch_size=2",
    ],
    _digests,
)  # fmt: skip
COMMANDS = (MAKE_RECORDS, PRETRAIN, FINETUNE, PREDICT, FEATURES)
CHECKPOINTS, SERVED = "checkpoints", "served"


class Samples:
    """The samples in a folder, each made when it is first needed.

    Args:
        folder: of the samples.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def make(self, names: tuple[str, ...]) -> None:
        """Makes the samples of these names that are missing, and the files that all need."""
        if not (self.folder / VOCAB).exists():
            self._write_inputs()
        commands = {command.name: command for command in COMMANDS}
        wanted = {need for name in names if name in commands for need in commands[name].needs} | set(names)
        wanted |= set(PREDICT.needs) if "export" in wanted else set()
        for name in ("make-records", "pretrain", "finetune", "export", "predict", "features", CHECKPOINTS, SERVED):
            if name not in wanted or (self.folder / name).exists():
                continue
            since = time.monotonic()
            if name == CHECKPOINTS:
                processes.call(self._write_checkpoints)
            elif name == SERVED:
                processes.call(self._write_served)
            elif name == "export":
                _succeed("export", [f"--model_dir={self.folder}/finetune/run", f"--export_dir={self.folder}/export"])
            else:
                (self.folder / name).mkdir()
                _succeed(name, commands[name].arguments(self.folder, self.folder / name))
            (self.folder / f"{name}.seconds").write_text(f"{time.monotonic() - since:.2f}")

    def seconds(self, name: str) -> float:
        """How long it took to make a sample."""
        return float((self.folder / f"{name}.seconds").read_text())

    def check_result(self, command: Command, out: pathlib.Path, may_lack: str | None = None) -> None:
        """Raises NotHeldError unless a command's result is that of an unharmed run.

        Args:
            command: what was run.
            out: where to.
            may_lack: a log, some of whose lines may be gone.
        """
        expected, seen = command.result(self.folder / command.name), command.result(out)
        differing = sorted(name for name in {*expected, *seen} if expected.get(name) != seen.get(name))
        if may_lack:
            differing = [name for name in differing if name in seen or not name.startswith(f"{may_lack}, step ")]
        if differing:
            raise NotHeldError(f"the result is another one than unharmed: {', '.join(differing[:5])}")

    def _write_inputs(self) -> None:
        rng = random.Random(0)

        def text(least: int = 3, most: int = 12) -> str:
            return " ".join(rng.choices(_PLAIN_WORDS, k=rng.randrange(least, most)))

        (self.folder / VOCAB).write_text("".join(f"{word}\n" for word in WORDS))
        (self.folder / CONFIG).write_text(json.dumps(_CONFIG))
        for name in TEXTS:
            documents = ["\n".join(text() for _ in range(8)) for _ in range(40)]
            (self.folder / name).write_text("\n\n".join(documents) + "\n")
        rows = [f"{'ab'[number % 2]},{text()}\n" for number in range(64)]
        (self.folder / TABLE).write_text("label,text\n" + "".join(rows))
        (self.folder / QUERIES).write_text("".join(json.dumps({"text": text()}) + "\n" for _ in range(200)))
        (self.folder / LINES).write_text("".join(f"{text()}\n" for _ in range(200)))

    def _write_checkpoints(self) -> None:
        from official_bert.checkpoints.formats.all_formats import FORMATS
        from tests.checkpoints.checkpoint_samples import write_sample

        beside = self.folder / f"{CHECKPOINTS}.writing"
        beside.mkdir()
        for format_name in FORMATS:
            write_sample(format_name, beside / format_name)
        beside.rename(self.folder / CHECKPOINTS)

    def _write_served(self) -> None:
        from tests.serving import served_models

        beside = self.folder / f"{SERVED}.writing"
        served_models.versioned(beside / "size")
        served_models.question_answering(beside / "answers")
        served_models.multiple_choice(beside / "endings")
        beside.rename(self.folder / SERVED)


def _succeed(name: str, arguments: list[str]) -> None:
    ended = processes.run(name, arguments)
    if ended.code:
        raise RuntimeError(f"{name} ended with {ended.code} before any attack: {ended.output[-3000:]}")


def damage(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Returns the content of a file with some damage, and what was done."""
    kind = rng.choice(["flip", "flip", "flip", "cut", "insert", "zero", "empty"])
    place = rng.randrange(max(len(content), 1))
    if kind == "flip" and content:
        bit = 1 << rng.randrange(8)
        return content[:place] + bytes([content[place] ^ bit]) + content[
            place + 1 :
        ], f"bit {bit} of byte {place} flipped"
    if kind == "cut":
        return content[:place], f"cut at byte {place}"
    if kind == "insert":
        return content[:place] + rng.randbytes(rng.randrange(1, 9)) + content[place:], f"bytes put in at {place}"
    if kind == "zero":
        end = min(place + rng.randrange(1, 64), len(content))
        return content[:place] + bytes(end - place) + content[end:], f"bytes {place} to {end} set to 0"
    return b"", "emptied"
