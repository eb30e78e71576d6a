"""Makes the samples to attack: small texts, records, models and exports. Most of them are made by the commands."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import random
import time
from collections.abc import Callable
from typing import Any

from tests.make import WORDS
from tools.robustness.attack import processes
from tools.robustness.attack.cases import NotHeldError

CONFIG: dict[str, Any] = {"vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 16, "max_position_embeddings": 32}
FORMATS = ("official_bert", "tf1", "hugging_face", "keras_hub", "model_garden")
# Models of other libraries, which carry no checksums: an archive of tests/golden and the model in it.
TENSORFLOW_MODELS = {
    "tf_model.h5": ("transformers", "classifier"),
    "tensorflow_hub": ("tensorflow_hub", "hub"),
    "keras_nlp": ("keras_nlp_0.8", "preset"),
}
# Files that differ between two equal runs because they contain times or arbitrary names.
_VOLATILE = (".pb", ".json", ".md", "requests")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of official-bert to attack.

    Attributes:
        name: Name of the command, and of the sample that it makes.
        flags: Its flags, with the placeholders {samples} and {out} for the folder of the samples and the output folder.
        read_result: Function that reads from the output folder what must be the same after any attack.
        is_training: Whether it is a training run, whose files change until its end.
        writes_once: Whether its output appears all at the same time and is never overwritten.
    """

    name: str
    flags: str
    read_result: Callable[[pathlib.Path], dict[str, str]]
    is_training: bool = False
    writes_once: bool = False

    def arguments(self, sample_folder: pathlib.Path, out: pathlib.Path) -> list[str]:
        """Returns the flags with these folders in place of the placeholders."""
        return [flag.format(samples=sample_folder, out=out) for flag in self.flags.split()]


def _hash_files(folder: pathlib.Path, volatile: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns the hash of each complete file in a folder. Files whose names end with `volatile` have "" instead."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    names = {str(path.relative_to(folder)): path for path in paths if ".writing-" not in str(path)}
    return {
        name: "" if name.endswith(volatile) else hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in names.items()
    }


def _read_log(folder: pathlib.Path, name: str) -> dict[str, str]:
    """Returns the losses, learning rates and accuracies in a log as texts, by step."""
    compared = ("loss", "learning_rate", "accuracy")
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return {
        f"{name}, step {line['step']}": str([(key, line[key]) for key in line if key.split("/")[-1] in compared])
        for line in lines
    }


def _read_pretraining(folder: pathlib.Path) -> dict[str, str]:
    """Returns the name of the newest checkpoint, the digest of each of its tensors, and the log."""
    from official_bert.checkpoints import bundle

    newest = bundle.list_checkpoints(str(folder / "run"))[0]
    source = bundle.open_bundle(newest)
    names = [name for name in sorted(source.shapes) if "ATTRIBUTES" in name]  # not TensorFlow's graph of objects
    tensors = {name: hashlib.sha256(source.read(name).tobytes()).hexdigest() for name in names}
    return {"newest": os.path.basename(newest)} | tensors | _read_log(folder / "run", "train.jsonl")


def _read_finetuning(folder: pathlib.Path) -> dict[str, str]:
    import h5py

    run, weights = folder / "run", dict[str, str]()

    def add(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            weights[name] = hashlib.sha256(item[()].tobytes()).hexdigest()

    with h5py.File(run / "model.weights.h5") as file:
        file.visititems(add)
    texts = {name: (run / name).read_text() for name in ("task.json", "vocab.txt", "bert_config.json")}
    return weights | texts | _read_log(run, "train.jsonl") | _read_log(run, "eval.jsonl")


_hash_model = functools.partial(_hash_files, volatile=_VOLATILE)
# In the order in which their samples are made.
COMMANDS = (
    Command(
        "make-records",
        "--input_file={samples}/text.txt --output_file={out}/train.tfrecord --vocab_file={samples}/vocab.txt"
        " --max_seq_length=32 --max_predictions_per_seq=5 --dupe_factor=2 --num_shards=2 --num_workers=2"
        " --block_tokens=1000",
        _hash_files,
    ),
    Command(
        "pretrain",
        "--input_file={samples}/make-records/train-*.tfrecord --output_dir={out}/run --vocab_file={samples}/vocab.txt"
        " --bert_config_file={samples}/config.json --max_seq_length=32 --max_predictions_per_seq=5 --do_train"
        " --train_batch_size=8 --num_train_steps=24 --num_warmup_steps=2 --learning_rate=0.01 --log_steps=1"
        " --save_checkpoints_steps=3 --keep_checkpoint_max=3 --nocompile_parts",
        _read_pretraining,
        is_training=True,
    ),
    Command(
        "finetune",
        "--task=table --init={samples}/pretrain/run --train_file={samples}/table.csv --eval_file={samples}/table.csv"
        " --output_dir={out}/run --do_train --do_eval --num_train_epochs=3 --train_batch_size=8 --max_seq_length=16"
        " --eval_steps=4 --learning_rate=0.01 --log_steps=1",
        _read_finetuning,
        is_training=True,
    ),
    Command(
        "export", "--model_dir={samples}/finetune/run --export_dir={out} --version=1", _hash_model, writes_once=True
    ),
    Command(
        "predict",
        "--export_dir={samples}/export --input_file={samples}/queries.jsonl --output_file={out}/answers.jsonl"
        " --batch_size=2",
        _hash_files,
    ),
    Command(
        "features",
        "--init={samples}/pretrain/run --input_file={samples}/text.txt --output_file={out}/vectors.npy --layers=-1"
        " --max_seq_length=32 --batch_size=8",
        _hash_files,
    ),
    Command(
        "convert",
        "--from={samples}/checkpoints/official_bert --to={out}/model --to_format=hugging_face",
        _hash_model,
        writes_once=True,
    ),
)


def make(folder: pathlib.Path) -> None:
    """Makes all samples in a new folder, and measures how long each command takes."""
    folder.mkdir()
    _write_inputs(folder)
    for write in (_write_checkpoints, _write_served):
        _check_success(write.__name__, processes.start_function(functools.partial(write, folder)).finish())
    for command in COMMANDS:
        (folder / command.name).mkdir()
        started = time.monotonic()
        _check_success(command.name, processes.run(command.name, command.arguments(folder, folder / command.name)))
        (folder / f"{command.name}.seconds").write_text(f"{time.monotonic() - started:.2f}")


def read_seconds(folder: pathlib.Path, command: Command) -> float:
    """Returns how many seconds a command took without an attack."""
    return float((folder / f"{command.name}.seconds").read_text())


def check_result(sample_folder: pathlib.Path, command: Command, out: pathlib.Path, shortened_log: str = "") -> None:
    """Raises NotHeldError if the result of a command differs from the sample.

    Args:
        sample_folder: The folder of the samples.
        command: The command that was run.
        out: Its output folder.
        shortened_log: Name of a log that may lack lines, or "".
    """
    expected, found = command.read_result(sample_folder / command.name), command.read_result(out)
    differing = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if shortened_log:
        differing = [name for name in differing if name in found or not name.startswith(f"{shortened_log}, step ")]
    if differing:
        raise NotHeldError(f"the result differs from an undisturbed run: {', '.join(differing[:5])}")


def _check_success(name: str, ended: processes.Ended) -> None:
    if ended.code:
        raise RuntimeError(f"{name} ended with {ended.code} before any attack: {ended.output[-3000:]}")


def _write_inputs(folder: pathlib.Path) -> None:
    rng = random.Random(0)
    words = [word for word in WORDS if word[0] not in "[#,.!?"]

    def make_sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randrange(3, 12)))

    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    documents = ["\n".join(make_sentence() for _ in range(8)) for _ in range(80)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    rows = [f"{'ab'[number % 2]},{make_sentence()}\n" for number in range(64)]
    (folder / "table.csv").write_text("label,text\n" + "".join(rows))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"text": make_sentence()}) + "\n" for _ in range(200)))


def _write_checkpoints(folder: pathlib.Path) -> None:
    from tests.checkpoints.checkpoint_samples import unpacked, write_sample

    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    for name in FORMATS:
        write_sample(name, checkpoints / name)
    for name, (library, model) in TENSORFLOW_MODELS.items():
        unpacked(library, folder / "libraries").joinpath(model).rename(checkpoints / name)
        (checkpoints / name / "expected.npz").unlink()


def _write_served(folder: pathlib.Path) -> None:
    from tests.serving import served_models

    served_models.versioned(folder / "served" / "size")
    served_models.question_answering(folder / "served" / "answers")
    served_models.multiple_choice(folder / "served" / "endings")
    served_models.tagger(folder / "served" / "names")
