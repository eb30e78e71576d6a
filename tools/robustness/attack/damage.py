"""Files of models, records and exports with a flipped bit, cut short or longer: read as if whole, or refused."""

import dataclasses
import functools
import hashlib
import pathlib
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from official_bert.errors import UserError
from tests.conftest import WORDS
from tools.robustness.attack import samples
from tools.robustness.attack.commands import (
    CONFIG,
    FINETUNE,
    LENGTH,
    MAKE_RECORDS,
    PREDICTIONS,
    PRETRAIN,
    TABLE,
    VOCAB,
)
from tools.robustness.attack.processes import NotHeldError
from tools.robustness.attack.samples import CHECKPOINTS, FORMATS, TENSORFLOW_MODELS

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = (*FINETUNE.needs, FINETUNE.name, "export", CHECKPOINTS)
_MODEL_FILES = ("bert_config.json", "vocab.txt", "tokenizer_config.json", "checksums.json")

Digest = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Target:
    """Files that are read together.

    Attributes:
        source: their folder, below that of the samples.
        read: returns what is read of a folder; of {} nothing says whether it is right.
        names: patterns of the files to copy.
        tries: how many files are damaged in a case, one after the other.
        prepare: what else is done in the copy.
        others: returns further results that are right, of a whole folder.
    """

    source: str
    read: Callable[[pathlib.Path], Digest]
    names: tuple[str, ...] = ("*",)
    tries: int = 20
    prepare: Callable[[pathlib.Path], Any] = lambda folder: None
    others: Callable[[pathlib.Path], list[Digest]] = lambda folder: []


def attack(case: "Case") -> None:
    """Damages files of one target, one at a time, and reads the target as a command does."""
    targets = _targets()
    case.what = sorted(targets)[case.number % len(targets)]
    target = targets[case.what]
    whole = case.folder / "whole"
    whole.mkdir()
    for pattern in target.names:
        for path in sorted((case.samples.folder / target.source).glob(pattern)):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, whole / path.name)
    target.prepare(whole)
    right = [target.read(whole), *target.others(whole)]
    case.tried = 0
    for number in range(target.tries):
        folder = case.folder / str(number)
        shutil.copytree(whole, folder)
        path = case.rng.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
        content, how = samples.damage(path.read_bytes(), case.rng)
        if case.rng.random() < 0.1:
            path.unlink()
            how = "removed"
        else:
            path.write_bytes(content)
        case.tried += 1
        case.done = f"attempt {number}: {path.relative_to(folder)}: {how}"
        try:
            seen = target.read(folder)
        except UserError as error:
            if not 0 < len(str(error)) < 4000:
                raise NotHeldError(f"an error of {len(str(error)):,} characters: {str(error)[:300]}") from error
        else:
            if seen not in right:
                raise NotHeldError("it is read without an error, but as another one than was written")
        shutil.rmtree(folder)


def _targets() -> dict[str, Target]:
    whole = {f"checkpoint, {name}": Target(f"{CHECKPOINTS}/{name}", _checkpoint) for name in FORMATS}
    unsummed = {
        f"checkpoint, {name}, without checksums": Target(
            f"{CHECKPOINTS}/{name}",
            _fitting,
            prepare=lambda folder: (folder / "checksums.json").unlink(missing_ok=True),
        )
        for name in (*FORMATS, *TENSORFLOW_MODELS)
    }
    run = ("ckpt-*", "checkpoint", *_MODEL_FILES)
    tuned = ("model.weights.h5", "task.json", *_MODEL_FILES)
    return whole | unsummed | {
        "run with three checkpoints": Target(f"{PRETRAIN.name}/run", _run, run, others=_each_checkpoint),
        "fine-tuned folder": Target(f"{FINETUNE.name}/run", _tuned, tuned),
        "Keras' file": Target(f"{FINETUNE.name}/run", _keras_file, tuned, tries=6, prepare=_save_by_keras),
        "export": Target("export", _export, tries=6),
        "records and manifest, read": Target(MAKE_RECORDS.name, _records),
        "records and manifest, verified": Target(MAKE_RECORDS.name, _verified),
        "vocabulary and configuration": Target("", _inputs, (VOCAB, CONFIG)),
        "table": Target("", _table, (TABLE,)),
        "cached features": Target("", _features, ("nothing",), prepare=_features),
    }  # fmt: skip


def _arrays(values: dict[str, Any]) -> dict[str, str]:
    return {name: hashlib.sha256(np.asarray(value).tobytes()).hexdigest() for name, value in values.items()}


def _checkpoint(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints import reading
    from official_bert.checkpoints.checkpoint import LoadOverrides

    checkpoint = reading.read(str(folder), LoadOverrides())[1]
    about = (checkpoint.config, checkpoint.vocab, checkpoint.casing, checkpoint.labels)
    return _arrays(checkpoint.weights | checkpoint.slots) | {"about": str(about)}


def _fitting(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints import reading
    from tests.checkpoints.checkpoint_samples import assert_fits

    assert_fits(reading.read(str(folder))[1])
    return {}


def _run(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints import loading

    model, config, tokenizer = loading.load_pretraining_model(str(folder))
    return _arrays({each.path: each.numpy() for each in model.variables}) | {"about": str((config, tokenizer.vocab))}


def _each_checkpoint(folder: pathlib.Path) -> list[Digest]:
    """What is read if a checkpoint is the newest that is whole."""
    return [_run(path.with_suffix("")) for path in sorted(folder.glob("ckpt-*.index"))]


def _tuned(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints import finetuned

    loaded = finetuned.load(str(folder))
    about = (loaded.config, loaded.tokenizer.vocab, loaded.task_spec)
    return _arrays({variable.path: variable.numpy() for variable in loaded.model.variables}) | {"about": str(about)}


def _save_by_keras(folder: pathlib.Path) -> None:
    from official_bert.keras_models.classification import TextClassifier

    model = TextClassifier.from_checkpoint(str(folder))
    for path in folder.iterdir():
        path.unlink()
    model.save(folder / "model.keras")


def _keras_file(folder: pathlib.Path) -> Digest:
    from official_bert.keras_models.classification import TextClassifier

    model = TextClassifier.load(str(folder / "model.keras"))
    return _arrays({each.path: each.numpy() for each in model.variables}) | {"about": str(model.get_config())}


def _export(folder: pathlib.Path) -> Digest:
    from official_bert.inference import batch_prediction
    from official_bert.inference.options import BatchPredictionOptions

    given, answers = folder.parent / "queries.jsonl", folder.parent / "answers.jsonl"
    given.write_text('{"text": "the cat sat"}\n{"text": "a dog"}\n{"text": ""}\n')
    for left in folder.parent.glob("answers.jsonl*"):
        left.unlink()
    batch_prediction.predict(BatchPredictionOptions(str(folder), str(given), str(answers)))
    return {"answers": answers.read_text()}


def _records(folder: pathlib.Path) -> Digest:
    from official_bert.modeling.config import BertConfig
    from official_bert.pretraining.record_files import RecordFiles

    config = BertConfig(len(WORDS), 8, 1, 2, 16, max_position_embeddings=LENGTH)
    found = RecordFiles.find(
        [f"{folder}/train-*-of-*.tfrecord"], "input_file", max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS,
        config=config, vocab_file=None,
    )  # fmt: skip
    digest = hashlib.sha256()
    with found.naming_damage():
        for batch in found.evaluation(64):
            for name in sorted(batch):
                digest.update(batch[name].numpy().tobytes())
    return {"records": digest.hexdigest()}


def _verified(folder: pathlib.Path) -> Digest:
    from data_gen.inspection import verification
    from data_gen.options import VerificationOptions

    manifest = folder / "train.manifest.json"
    findings = verification.verify(VerificationOptions(manifest=str(manifest)))
    if findings.problems:
        raise UserError("; ".join(findings.problems)[:3000])
    shards = sorted(folder.glob("*.tfrecord"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in shards}


def _inputs(folder: pathlib.Path) -> Digest:
    from official_bert.checkpoints.vocabulary import check_vocabulary
    from official_bert.modeling.config import BertConfig
    from official_bert.modeling.encoder import build_encoder
    from official_bert.tokenization.exact import FullTokenizer, check_special_tokens, load_vocab
    from official_bert.utils import files

    vocab = load_vocab(str(folder / VOCAB))
    check_special_tokens(vocab, str(folder / VOCAB))
    FullTokenizer(str(folder / VOCAB), True).tokenize("the cat unaffable ünï")
    config = BertConfig.from_json_file(str(folder / CONFIG))
    check_vocabulary(files.read_text(str(folder / VOCAB)), config, str(folder / VOCAB))
    if config.vocab_size < 10_000 and config.hidden_size < 100 and config.intermediate_size < 1000:
        build_encoder(config)
    return {}


def _table(folder: pathlib.Path) -> Digest:
    from official_bert.tasks.all_tasks import make_task
    from official_bert.tasks.options import TableOptions
    from official_bert.utils.bad_rows import SKIP, BadRows

    options = TableOptions(train_file=str(folder / TABLE), eval_file=str(folder / TABLE))
    task = make_task("table", options)
    for split in (task.train_split, *task.eval_splits):
        task.read(split, BadRows(SKIP, silent=True))
    return {}


def _features(folder: pathlib.Path) -> Digest:
    """Features from the cache in the folder, or made anew."""
    from official_bert.finetuning.feature_cache import features_of
    from official_bert.tasks.all_tasks import make_task
    from official_bert.tasks.heads.texts import TextExample
    from official_bert.tasks.options import GlueOptions

    examples = [TextExample(str(number), "the cat sat " * (number % 3 + 1), None, number % 2) for number in range(9)]
    features = features_of(make_task("sst-2", GlueOptions()), examples, _tokenizer(), 16, str(folder))
    arrays = {"ids": features.input_ids, "segments": features.segment_ids, "splits": features.splits}
    return _arrays({**arrays, **features.targets, **features.details})


@functools.cache
def _tokenizer() -> Any:
    from official_bert.tokenization.fast import FastTokenizer

    return FastTokenizer.from_vocab("".join(f"{word}\n" for word in WORDS), True)
