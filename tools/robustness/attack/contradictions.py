"""Passes options that may contradict a checkpoint. They must be refused if they do, and accepted otherwise."""

import dataclasses
import random
from typing import Any

from tools.robustness.attack.cases import Case, NotHeldError

_FORMATS = ("tf1", "official_bert", "hugging_face", "keras_hub")
_LABELS = ("bad", "good", "neither")
_TEXTS = ["the cat sat", "a dog ran in the sun ."]


def attack(case: Case) -> None:
    """Reads a checkpoint with a vocabulary, a casing, classes or a label order that may not be its own."""
    contradict = case.rng.choice([_change_vocabulary, _change_casing, _change_classes, _change_label_order])
    case.what = contradict.__name__.replace("_change_", "").replace("_", " ")
    contradict(case, case.rng)


def _write_checkpoint(case: Case, format_name: str, parts: frozenset[str] = frozenset(), **fields: Any) -> str:
    """Writes a new checkpoint and returns its folder.

    Args:
        case: The case.
        format_name: The checkpoint format.
        parts: The parts that the checkpoint has. Defaults to the parts of a pre-training model.
        **fields: Values of other fields of LoadedModel.
    """
    from official_bert.checkpoints.checkpoint import PRETRAINING
    from official_bert.checkpoints.formats.all_formats import FORMATS
    from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, sample

    folder = case.folder / "checkpoint"
    folder.mkdir()
    checkpoint = dataclasses.replace(sample(SAMPLE_CONFIG, parts or PRETRAINING), **fields)
    write = FORMATS[format_name].write
    assert write
    write(checkpoint, str(folder))
    case.done = format_name
    return str(folder)


def _expect_acceptance(folder: str, is_consistent: bool, **options: Any) -> None:
    """Checks that fine-tuning accepts a checkpoint and options if they are consistent, and refuses them otherwise.

    Raises:
        NotHeldError: If it does not.
    """
    from official_bert.checkpoints.checkpoint import LoadOverrides
    from official_bert.errors import UserError
    from official_bert.finetuning.initial_model import read_initial_model

    try:
        read_initial_model(folder, LoadOverrides(**options))
    except UserError as error:
        if is_consistent:
            raise NotHeldError(f"consistent options are refused: {error}") from error
    else:
        if not is_consistent:
            raise NotHeldError("contradicting options are accepted")


def _change_vocabulary(case: Case, rng: random.Random) -> None:
    from tests.make import WORDS

    folder, lines = _write_checkpoint(case, rng.choice(_FORMATS)), list(WORDS)
    change = rng.choice(["none", "swap", "shorten", "rename", "lengthen"])
    case.done += f", {change}"
    at, other = rng.sample(range(6, len(lines)), 2)
    match change:
        case "swap":
            lines[at], lines[other] = lines[other], lines[at]
        case "shorten":
            lines = lines[:at]
        case "rename":
            lines[at] = "another"
        case "lengthen":
            lines.append("another")
    path = case.folder / "vocab.txt"
    path.write_text("\n".join(lines) + "\n")
    _expect_acceptance(folder, change == "none", vocab_file=str(path))


def _change_casing(case: Case, rng: random.Random) -> None:
    from official_bert.tokenization.casing import Casing

    own, given = rng.random() < 0.5, rng.random() < 0.5
    folder = _write_checkpoint(case, rng.choice(_FORMATS), casing=Casing(own, own))
    case.done += f", lower case {own}, given {given}"
    _expect_acceptance(folder, own == given, do_lower_case=given)


def _change_classes(case: Case, rng: random.Random) -> None:
    """Reads a Hugging Face classifier with other classes, or with its own classes in another order."""
    import numpy as np

    import official_bert
    from official_bert.checkpoints.checkpoint import ENCODER, POOLER, SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER

    part = rng.choice([SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER])
    folder = _write_checkpoint(case, "hugging_face", frozenset({ENCODER, POOLER, part}), labels=_LABELS)
    labels = rng.sample([*_LABELS, "other"], rng.randrange(2, 5))
    case.done = f"{part}, {labels}"
    model_class: Any = official_bert.TextClassifier if part == SEQUENCE_CLASSIFIER else official_bert.TokenTagger
    original, changed = model_class.from_checkpoint(folder), model_class.from_checkpoint(folder, labels=labels)
    inputs = original.preprocessor(_TEXTS)
    expected, logits = original.predict_on_batch(inputs), changed.predict_on_batch(inputs)
    if sorted(labels) == sorted(_LABELS):
        if not np.array_equal(logits, expected[..., [_LABELS.index(label) for label in labels]]):
            raise NotHeldError("the logits are in another order than the classes")
    elif logits.shape[-1] != len(labels) or np.isin(logits, expected).any():
        raise NotHeldError("the classifier is used for classes that it was not trained for")


def _change_label_order(case: Case, rng: random.Random) -> None:
    """Reads a multi-label model with thresholds and passes its labels in another order."""
    import official_bert
    from official_bert.modeling.config import BertConfig
    from tests.make import WORDS

    config = BertConfig(len(WORDS), 8, 1, 2, 16, max_position_embeddings=16, initializer_range=1.0)
    thresholds = [rng.uniform(0.1, 0.9) for _ in _LABELS]
    model = official_bert.TextClassifier(
        config, "\n".join(WORDS) + "\n", labels=_LABELS, multi_label=True, thresholds=thresholds, seed=rng.randrange(99)
    )
    folder, labels = str(case.folder / "model"), rng.sample(_LABELS, len(_LABELS))
    case.done = f"{labels}, {thresholds}"
    model.save_checkpoint(folder)
    changed = official_bert.TextClassifier.from_checkpoint(folder, labels=labels)
    expected, found = ([set(labels) for labels in each.classify(_TEXTS)] for each in (model, changed))
    if found != expected:
        raise NotHeldError(f"{found} instead of {expected}")
