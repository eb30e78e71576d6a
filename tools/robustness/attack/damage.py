"""Damages files of models, exports and records. They must be refused, or read as if they were undamaged."""

import dataclasses
import hashlib
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

from official_bert.errors import UserError
from tools.robustness.attack import samples
from tools.robustness.attack.cases import Case, NotHeldError

_MODEL_FILES = ("bert_config.json", "vocab.txt", "tokenizer_config.json", "checksums.json")
_MAX_MESSAGE = 4000  # characters

Digest = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Target:
    """A set of files to damage, which are read together.

    Attributes:
        source: The folder of the files, relative to the folder of the samples.
        read: Function that reads a folder and returns digests of what it reads, or {} if any content is acceptable.
        patterns: Glob patterns of the files.
        attempts: Number of files that are damaged in a case, one after the other.
        prepare: Function that changes the copy of the folder before it is read.
        read_alternatives: Function that returns other results of `read` that are also correct.
    """

    source: str
    read: Callable[[pathlib.Path], Digest]
    patterns: tuple[str, ...] = ("*",)
    attempts: int = 20
    prepare: Callable[[pathlib.Path], Any] = lambda folder: None
    read_alternatives: Callable[[pathlib.Path], list[Digest]] = lambda folder: []


def attack(case: Case) -> None:
    """Damages the files of one target, one at a time, and reads the target after each, as a command would."""
    targets = _list_targets()
    case.what = sorted(targets)[case.number % len(targets)]
    target = targets[case.what]
    undamaged = case.folder / "undamaged"
    undamaged.mkdir()
    for pattern in target.patterns:
        for path in sorted((case.samples / target.source).glob(pattern)):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, undamaged / path.name)
    target.prepare(undamaged)
    correct = [target.read(undamaged), *target.read_alternatives(undamaged)]
    case.tried = 0
    for number in range(target.attempts):
        folder = case.folder / str(number)
        shutil.copytree(undamaged, folder)
        how = damage_file(folder, case.rng)
        case.tried += 1
        case.done = f"attempt {number}: {how}"
        try:
            found = target.read(folder)
        except UserError as error:
            if not 0 < len(str(error)) < _MAX_MESSAGE:
                raise NotHeldError(f"an error of {len(str(error)):,} characters: {str(error)[:300]}") from error
        else:
            if found not in correct:
                raise NotHeldError("the files are read without an error, but with another content")
        shutil.rmtree(folder)


def damage_file(folder: pathlib.Path, rng: random.Random, excluded: tuple[str, ...] = ()) -> str:
    """Damages a random file in a folder. Returns a description of the damage, or "" if the folder has no files.

    Args:
        folder: The folder.
        rng: Source of the random choices.
        excluded: Files whose names contain one of these texts are never damaged.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    paths = [path for path in paths if not any(part in path.name for part in excluded)]
    if not paths:
        return ""
    path = rng.choice(paths)
    content, kind = path.read_bytes(), rng.choice(["flip", "flip", "flip", "cut", "insert", "zero", "empty", "swap"])
    at = rng.randrange(max(len(content), 1))
    end = min(at + rng.randrange(1, 64), len(content))
    match kind:
        case "flip" if content:
            content = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        case "cut":
            content = content[:at]
        case "insert":
            content = content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]
        case "zero":
            content = content[:at] + bytes(end - at) + content[end:]
        case "swap":  # with the content of another file
            content = rng.choice(paths).read_bytes()
        case _:
            content = b""
    path.write_bytes(content)
    if rng.random() < 0.1:
        path.unlink()
        kind = "remove"
    return f"{path.relative_to(folder)}: {kind} at byte {at}"


def _list_targets() -> dict[str, Target]:
    checkpoints = {f"checkpoint, {name}": Target(f"checkpoints/{name}", _read_checkpoint) for name in samples.FORMATS}
    without_checksums = {
        f"checkpoint, {name}, without checksums": Target(
            f"checkpoints/{name}",
            _read_valid_checkpoint,
            prepare=lambda folder: (folder / "checksums.json").unlink(missing_ok=True),
        )
        for name in (*samples.FORMATS, *samples.TENSORFLOW_MODELS)
    }
    run = ("ckpt-*", "checkpoint", *_MODEL_FILES)
    tuned = ("model.weights.h5", "task.json", *_MODEL_FILES)
    others = {
        "pre-training run": Target("pretrain/run", _read_run, run, read_alternatives=_read_each_checkpoint),
        "fine-tuned model": Target("finetune/run", _read_finetuned, tuned),
        "Keras file": Target("finetune/run", _read_keras_file, tuned, attempts=6, prepare=_save_keras_file),
        "export": Target("export", _read_export, attempts=6),
        "records, read": Target("make-records", _read_records),
        "records, verified": Target("make-records", _verify_records),
    }
    return checkpoints | without_checksums | others


def _hash_arrays(values: dict[str, Any], *others: Any) -> Digest:
    arrays = {name: hashlib.sha256(np.asarray(value).tobytes()).hexdigest() for name, value in values.items()}
    return arrays | {"others": str(others)}


def _hash_variables(model: Any, *others: Any) -> Digest:
    return _hash_arrays({variable.path: variable.numpy() for variable in model.variables}, *others)


def _read_checkpoint(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints.loading import open_model

    checkpoint = open_model(str(folder))
    others = (checkpoint.config, checkpoint.vocab, checkpoint.casing, checkpoint.labels)
    return _hash_arrays(checkpoint.weights | checkpoint.slots, *others)


def _read_valid_checkpoint(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints.loading import open_model
    from tests.checkpoints.checkpoint_samples import assert_fits

    assert_fits(open_model(str(folder)))
    return {}


def _read_run(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints import loading

    model, config, tokenizer = loading.load_pretraining_model(str(folder))
    return _hash_variables(model, config, tokenizer.vocab)


def _read_each_checkpoint(folder: pathlib.Path) -> list[Digest]:
    """Returns what is read if each of the checkpoints in turn is the newest complete one."""
    return [_read_run(path.with_suffix("")) for path in sorted(folder.glob("ckpt-*.index"))]


def _read_finetuned(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints.loading import open_model

    loaded = open_model(str(folder))
    return _hash_arrays(loaded.weights, loaded.config, loaded.tokenizer.vocab, loaded.task_spec)


def _save_keras_file(folder: pathlib.Path) -> None:
    from official_bert.keras_models.text_classifier import TextClassifier

    model = TextClassifier.from_checkpoint(str(folder))
    for path in folder.iterdir():
        path.unlink()
    model.save(folder / "model.keras")


def _read_keras_file(folder: pathlib.Path) -> Digest:
    from official_bert.keras_models.text_classifier import TextClassifier

    model = TextClassifier.load(str(folder / "model.keras"))
    return _hash_variables(model, model.get_config())


def _read_export(folder: pathlib.Path) -> Digest:
    from official_bert.inference import batch_prediction
    from official_bert.inference.options import BatchPredictionOptions

    queries, answers = folder.parent / "queries.jsonl", folder.parent / "answers.jsonl"
    queries.write_text('{"text": "the cat sat"}\n{"text": "a dog"}\n{"text": ""}\n')
    for earlier in folder.parent.glob("answers.jsonl*"):
        earlier.unlink()
    batch_prediction.predict(BatchPredictionOptions(str(folder), str(queries), str(answers)))
    return {"answers": answers.read_text()}


def _read_records(folder: pathlib.Path) -> Digest:
    from official_bert.modeling.config import BertConfig
    from official_bert.pretraining.options import PretrainingOptions
    from official_bert.pretraining.run_records import RunRecords

    options = PretrainingOptions(
        input_file=[f"{folder}/train-*-of-*.tfrecord"],
        bert_config_file="",
        output_dir="",
        do_eval=True,
        max_seq_length=32,
        max_predictions_per_seq=5,
    )
    records = RunRecords(options, BertConfig(**samples.CONFIG), replicas=1).training(options.phases[0])
    with records.explain_damage():
        batches = list(records.evaluation_batches(64))
    return {f"{number} {name}": str(batch[name].numpy()) for number, batch in enumerate(batches) for name in batch}


def _verify_records(folder: pathlib.Path) -> Digest:
    from data_gen.inspection import verification
    from data_gen.options import VerificationOptions

    findings = verification.verify(VerificationOptions(manifest=str(folder / "train.manifest.json")))
    if findings.problems:
        raise UserError("; ".join(findings.problems)[:3000])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.tfrecord")}
