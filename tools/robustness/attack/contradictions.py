"""What a user says of a checkpoint and what it says of itself: refused, put in order, or what both mean."""

import dataclasses
import pathlib
import random
from typing import TYPE_CHECKING, Any

from tools.robustness.attack.processes import NotHeldError

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = ()
_LABELS = ("bad", "good", "neither")
_TEXTS = ["the cat sat", "a dog ran in the sun ."]


def attack(case: "Case") -> None:
    """Reads a checkpoint of a random format with a word, a casing or classes that may not be its own."""
    rng = case.rng
    where = rng.choice([_vocabulary, _vocabulary_of_records, _casing, _classes, _thresholds])
    case.what = where.__name__.strip("_")
    where(case, rng)


def _checkpoint(case: "Case", rng: random.Random, **fields: Any) -> tuple[str, str]:
    """The folder and the vocabulary of a new checkpoint."""
    from official_bert.checkpoints.formats.all_formats import FORMATS
    from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, sample

    name = rng.choice(["tf1", "official_bert", "hugging_face", "keras_hub"])
    folder = case.folder / "checkpoint"
    folder.mkdir()
    checkpoint = dataclasses.replace(sample(SAMPLE_CONFIG), **fields)
    write = FORMATS[name].write
    assert write
    write(checkpoint, str(folder))
    case.done = name
    return str(folder), str(checkpoint.vocab)


def _vocabulary(case: "Case", rng: random.Random) -> None:
    folder, vocab = _checkpoint(case, rng)
    path, is_same = _another_vocabulary(case, rng, vocab)
    _expect(_reads(folder, vocab_file=path), is_same)


def _vocabulary_of_records(case: "Case", rng: random.Random) -> None:
    """Pre-training that begins with a checkpoint, on records of a vocabulary that may be another one."""
    from official_bert.errors import UserError
    from official_bert.pretraining import checks
    from official_bert.pretraining.options import Options
    from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG

    folder, vocab = _checkpoint(case, rng)
    path, is_same = _another_vocabulary(case, rng, vocab)
    options = Options(
        input_file=[], bert_config_file="", output_dir="", do_train=True, init_checkpoint=folder, vocab_file=path
    )
    try:
        checks.check_vocabulary_size(options, SAMPLE_CONFIG)
        checks.check_initial_checkpoint(options, SAMPLE_CONFIG, [], None)
    except UserError:
        _expect(False, is_same)
    else:
        _expect(True, is_same)


def _another_vocabulary(case: "Case", rng: random.Random, vocab: str) -> tuple[str, bool]:
    """A file of a vocabulary that was changed or not, and whether it is the same."""
    lines = vocab.splitlines()
    change = rng.choice(["none", "swap", "shuffle", "shorten", "rename", "lengthen"])
    case.done += f", {change}"
    if change == "swap":
        first, second = rng.sample(range(5, len(lines)), 2)
        lines[first], lines[second] = lines[second], lines[first]
    elif change == "shuffle":
        lines[5:] = rng.sample(lines[5:], len(lines) - 5)
    elif change == "shorten":
        lines = lines[: rng.randrange(6, len(lines))]
    elif change == "rename":
        lines[rng.randrange(5, len(lines))] = "another"
    elif change == "lengthen":
        lines.append("another")
    path = case.folder / "vocab.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path), lines == vocab.splitlines()


def _casing(case: "Case", rng: random.Random) -> None:
    from official_bert.tokenization.casing import Casing

    own, given = rng.random() < 0.5, rng.random() < 0.5
    folder, _ = _checkpoint(case, rng, casing=Casing(own, own))
    case.done += f", {own}, given {given}"
    _expect(_reads(folder, do_lower_case=given), own == given)


def _reads(folder: str, **given: Any) -> bool:
    """Whether fine-tuning begins with the folder."""
    from official_bert.errors import UserError
    from official_bert.learning.initial_model import read_initial_model

    try:
        read_initial_model(folder, **given)
    except UserError:
        return False
    return True


def _expect(found: bool, expected: bool) -> None:
    if found != expected:
        raise NotHeldError("it was taken" if found else "it was refused")


def _classes(case: "Case", rng: random.Random) -> None:
    """A Hugging Face folder with a classifier, read with classes of the user's."""
    import numpy as np

    import official_bert
    from official_bert.checkpoints.checkpoint import ENCODER, POOLER, SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER
    from official_bert.checkpoints.formats import hugging_face
    from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, sample

    part = rng.choice([SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER])
    checkpoint = dataclasses.replace(sample(SAMPLE_CONFIG, frozenset({ENCODER, POOLER, part})), labels=_LABELS)
    folder = str(pathlib.Path(case.folder, "checkpoint"))
    pathlib.Path(folder).mkdir()
    hugging_face.write(checkpoint, folder)
    labels = rng.sample([*_LABELS, "other"], rng.randrange(2, 5))
    case.done = f"{part}, {labels}"
    kind: Any = official_bert.TextClassifier if part == SEQUENCE_CLASSIFIER else official_bert.TokenTagger
    own, found = kind.from_checkpoint(folder), kind.from_checkpoint(folder, labels=labels)
    ids = own.preprocessor(_TEXTS)
    expected, logits = own.predict_on_batch(ids), found.predict_on_batch(ids)
    if sorted(labels) == sorted(_LABELS):
        if not np.array_equal(logits, expected[..., [_LABELS.index(label) for label in labels]]):
            raise NotHeldError("the classes are in another order than their logits")
    elif logits.shape[-1] != len(labels) or np.isin(logits, expected).any():
        raise NotHeldError("the classifier was taken for other classes")


def _thresholds(case: "Case", rng: random.Random) -> None:
    """A model of several labels that has thresholds, read with the labels in another order."""
    import official_bert
    from official_bert.modeling.config import BertConfig
    from tests.conftest import WORDS

    config = BertConfig(len(WORDS), 8, 1, 2, 16, max_position_embeddings=16, initializer_range=1.0)
    thresholds = [rng.uniform(0.1, 0.9) for _ in _LABELS]
    model = official_bert.TextClassifier(
        config, "\n".join(WORDS) + "\n", labels=_LABELS, multi_label=True, thresholds=thresholds, seed=rng.randrange(99)
    )
    folder, labels = str(case.folder / "model"), rng.sample(_LABELS, len(_LABELS))
    case.done = f"{labels}, {thresholds}"
    model.save_checkpoint(folder)
    found = official_bert.TextClassifier.from_checkpoint(folder, labels=labels)
    expected, seen = ([set(each) for each in one.classify(_TEXTS)] for one in (model, found))
    if seen != expected:
        raise NotHeldError(f"{seen} in place of {expected}")
