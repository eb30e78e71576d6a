"""The commands that go on after a stop, on the small samples, and what their results are."""

import dataclasses
import hashlib
import json
import os
import pathlib
import random
from collections.abc import Callable

from tests.conftest import WORDS

LENGTH, PREDICTIONS = 32, 5
_PLAIN_WORDS = [word for word in WORDS if word[0] not in "[#,.!?"]
_WITHOUT_DECISION = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")  # tensors that the number of saves decides

VOCAB, CONFIG, TEXTS, TABLE, QUERIES, LINES = (
    "vocab.txt", "config.json", ("text0.txt", "text1.txt"), "table.csv", "queries.jsonl", "lines.txt",
)  # fmt: skip


def plain_text(rng: random.Random, most: int = 12) -> str:
    """Some words of the vocabulary."""
    return " ".join(rng.choices(_PLAIN_WORDS, k=rng.randrange(most // 4, most)))


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that goes on after a stop.

    Attributes:
        name: of its sample.
        needs: the samples that it reads.
        arguments: its flags, from the folder of the samples and the folder to write into.
        result: what must be the same after whatever happened, from the folder that was written into.
        other_program: as official_bert_cli has it, or reproduce; "" where that is the name.
    """

    name: str
    needs: tuple[str, ...]
    arguments: Callable[[pathlib.Path, pathlib.Path], list[str]]
    result: Callable[[pathlib.Path], dict[str, str]]
    other_program: str = ""

    @property
    def program(self) -> str:
        return self.other_program or self.name


def file_digests(folder: pathlib.Path) -> dict[str, str]:
    """The digest of each file that is not a hidden or working one."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if ".writing-" not in path.name}


def losses(folder: pathlib.Path, name: str) -> dict[str, str]:
    """The losses, rates and accuracies in a log, by step."""
    kept = ("loss", "learning_rate", "accuracy")
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return {
        f"{name}, step {line['step']}": str([(key, line[key]) for key in line if key.split("/")[-1] in kept])
        for line in lines
    }


def bundle_digests(folder: pathlib.Path) -> dict[str, str]:
    """The name of a run's newest checkpoint, and the digest of each tensor in it."""
    from official_bert.checkpoints import bundle

    newest = bundle.newest_first(str(folder))[0]
    source = bundle.open_bundle(newest)
    names = [name for name in sorted(source.shapes) if not name.startswith(_WITHOUT_DECISION)]
    return {"newest": os.path.basename(newest)} | {
        name: hashlib.sha256(source.read(name).tobytes()).hexdigest() for name in names
    }


def _pretrained(folder: pathlib.Path) -> dict[str, str]:
    return bundle_digests(folder / "run") | losses(folder / "run", "train.jsonl")


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
    return values | losses(run, "train.jsonl") | losses(run, "eval.jsonl")


MAKE_RECORDS = Command(
    "make-records",
    (),
    lambda given, out: [
        f"--input_file={','.join(str(given / name) for name in TEXTS)}", f"--output_file={out}/train.tfrecord",
        "--num_shards=2", f"--vocab_file={given / VOCAB}", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}", "--dupe_factor=2", "--block_tokens=1000", "--num_workers=2",
    ],
    file_digests,
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
    file_digests,
)  # fmt: skip
FEATURES = Command(
    "features",
    ("make-records", "pretrain"),
    lambda given, out: [
        f"--init={given}/pretrain/run", f"--input_file={given / LINES}", f"--output_file={out}/vectors.npy",
        "--layers=-1", f"--max_seq_length={LENGTH}", "--batch_size=2",
    ],
    file_digests,
)  # fmt: skip
COMMANDS = (MAKE_RECORDS, PRETRAIN, FINETUNE, PREDICT, FEATURES)
