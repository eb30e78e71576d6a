"""Training follows the original: losses of BERT-Tiny over 1,000 steps on the same records."""

import json
import pathlib

import numpy as np
import pytest

from data_gen.options import RecordOptions
from official_bert.pretraining.run import pretrain
from tests.make import ROOT
from tests.pretraining.pretraining_runs import log_values, make_run_options

ORIGINAL = ROOT / "tests" / "golden" / "original" / "curves"
STEPS, POINT = 1000, 50  # steps of a run, and steps averaged into one point of its curve
SEEDS, OURS = (1, 2, 3), (1, 2)  # of the original's runs, and of our runs, which take one or two minutes each
SIZES = {"max_seq_length": 64, "max_predictions_per_seq": 10}
WINDOWS = 4  # number of parts of a run; the loss is averaged over each part
LOSSES = {"masked_lm_loss": 0.05, "next_sentence_loss": 0.005}  # minimum widening of a band, in nats


def measure_curve(records: str, seed: int, folder: pathlib.Path) -> dict[str, list[float]]:
    """Runs pre-training and returns its losses as means over POINT steps, like the golden files."""
    config = str(ROOT / "configs" / "models" / "uncased_L-2_H-128_A-2.json")
    settings = {**SIZES, "train_batch_size": 32, "learning_rate": 1e-3, "random_seed": seed, "jit_compile": True}
    steps = {"num_train_steps": STEPS, "save_checkpoints_steps": STEPS, "num_warmup_steps": 100, "log_steps": POINT}
    pretrain(make_run_options([records], config, folder, **settings, **steps))
    assert log_values(folder, "step") == list(range(POINT, STEPS + 1, POINT))
    return {name: log_values(folder, name) for name in LOSSES}


def windows(curves: list[dict[str, list[float]]], name: str) -> np.ndarray:
    """Returns the mean losses over the parts of the runs, [runs, WINDOWS]."""
    return np.array([curve[name] for curve in curves]).reshape(len(curves), WINDOWS, -1).mean(axis=2)


def check_bands(ours: list[dict[str, list[float]]], theirs: list[dict[str, list[float]]]) -> None:
    """Fails unless the bands of both programs overlap in every window.

    A band ranges from the lowest to the highest loss over a program's seeds. It is widened on both sides by the
    standard deviation over the seeds, but at least by the value in LOSSES.
    """
    for name, least in LOSSES.items():
        (low, high), (their_low, their_high) = (
            (means.min(axis=0) - width, means.max(axis=0) + width)
            for means in (windows(ours, name), windows(theirs, name))
            for width in [np.maximum(means.std(axis=0, ddof=1), least)]
        )
        overlaps = (low <= their_high) & (their_low <= high)
        assert overlaps.all(), f"{name}: ours {low} to {high}, the original's {their_low} to {their_high}"


def test_different_loss_curves_are_detected():
    def curves(*levels: float) -> list[dict[str, list[float]]]:
        return [{name: [level] * (STEPS // POINT) for name in LOSSES} for level in levels]

    check_bands(curves(7.0, 7.2), curves(7.1, 7.3))
    with pytest.raises(AssertionError, match="masked_lm_loss"):
        check_bands(curves(7.0, 7.1), curves(7.6, 7.7, 7.65))


@pytest.mark.slow
def test_loss_curves_of_bert_tiny_match_the_originals(test_data, tmp_path):
    """Seeds differ most in the step, after some hundreds, at which a run starts to use context."""
    from data_gen.pipelines import one_machine  # not available on a TPU host

    path = str(tmp_path / "train.tfrecord")
    text = [str(test_data / "corpus" / "enwiki" / f"wiki_0{number}") for number in range(3)]
    vocab_file = str(test_data / "vocab" / "bert-base-uncased-vocab.txt")
    files = {"input_file": text, "output_file": [path], "vocab_file": vocab_file}
    one_machine.create_pretraining_data(RecordOptions(**files, **SIZES, dupe_factor=2, random_seed=12345))
    theirs = [json.loads((ORIGINAL / f"seed_{seed}.json").read_text()) for seed in SEEDS]
    check_bands([measure_curve(path, seed, tmp_path / str(seed)) for seed in OURS], theirs)
