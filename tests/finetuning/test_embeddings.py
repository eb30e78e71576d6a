"""Text embeddings: the command from text pairs to vectors, the same training steps with fit, and exports."""

import dataclasses
import json

import numpy as np
import pytest

from official_bert import TextEncoder
from official_bert.finetuning import runner
from official_bert.finetuning.options import FinetuningOptions
from official_bert.inference import batch_prediction, feature_extraction
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions
from official_bert.runs.training_log import read_log
from official_bert.tasks.options import EMBEDDINGS, EmbeddingsOptions
from tests.export.exported_models import export
from tests.make import VOCAB, assert_mentions, assert_rejected, refusal, tiny_config, write_rows, write_text

NAMES = ("cat", "dog", "sun", "mat", "play", "walk", "able", "on")
PAIRS = [(f"the {name}", f"a {name} ran .") for name in NAMES]
TEXTS = [text for text, _ in PAIRS]
CONFIG = tiny_config(num_hidden_layers=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A finished run trained on eight pairs."""
    folder = tmp_path_factory.mktemp("embeddings")
    pairs = write_rows(folder / "pairs.jsonl", [{"text": text, "text_pair": other} for text, other in PAIRS])
    options = FinetuningOptions(
        task=EMBEDDINGS, output_dir=str(folder / "run"), init=write_text(folder / "config.json", CONFIG.to_json()),
        task_options=EmbeddingsOptions(train_file=pairs, eval_file=pairs, predict_file=pairs, dimensions=["4"]),
        vocab_file=write_text(folder / "vocab.txt", VOCAB), do_lower_case=True, do_train=True, do_eval=True,
        do_predict=True, random_seed=7, num_train_epochs=2.0, train_batch_size=4, learning_rate=1e-2, max_seq_length=16,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorflow.function", lambda function, **_: function)  # a few steps are faster without a graph
        assert set(runner.run(options)["dev"]) >= {"accuracy_at_1", "recall_at_10", "mrr", "mrr_of_4"}
    return folder


@pytest.fixture
def vectors(folder):
    """The vectors of the texts that the run wrote."""
    return np.load(folder / "run" / "vectors_test.npy")


def test_a_run_leaves_normalized_vectors_and_a_report(folder, vectors):
    assert vectors.shape == (len(PAIRS), 8)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0, rtol=1e-5)
    lines = (folder / "run" / "predictions_dev.tsv").read_text().splitlines()
    assert len(lines) == 1 + len(PAIRS)
    assert lines[1].startswith("the cat\ta cat ran .\t")
    spec = json.loads((folder / "run" / "task.json").read_text())
    assert (spec["kind"], spec["pooling"], spec["normalize"], spec["dimensions"]) == ("vectors", "mean", True, [4])
    assert "Errors, dev" in (folder / "run" / "MODEL_CARD.md").read_text()


def test_evaluation_uses_the_settings_of_the_training(folder, tmp_path):
    graded = [{"text": a, "text_pair": b, "score": number / 2} for number, (a, b) in enumerate(PAIRS)]
    eval_file = write_rows(tmp_path / "graded.jsonl", graded)
    options = FinetuningOptions(
        task=EMBEDDINGS, task_options=EmbeddingsOptions(eval_file=eval_file, score_range=["0", "5"]),
        output_dir=str(tmp_path / "scores"), init=str(folder / "run"), do_eval=True,
    )  # fmt: skip
    assert set(runner.run(options)["dev"]) == {"spearman", "pearson", "spearman_of_4"}


@pytest.mark.slow
@pytest.mark.core
def test_fit_takes_the_same_steps_as_the_command(folder, vectors):
    encoder = TextEncoder(CONFIG, VOCAB, seed=7, normalize=True, dimensions=(4,), max_seq_length=16)
    encoder.compile(learning_rate=1e-2)
    losses = encoder.fit(PAIRS, batch_size=4, epochs=2, verbose=0).history["loss"]
    logged = {line["step"]: line["loss"] for line in read_log(str(folder / "run"), "train")}
    by_epoch = [np.mean([logged[step] for step in steps]) for steps in ((1, 2), (3, 4))]
    np.testing.assert_allclose(losses, by_epoch, rtol=1e-5)
    # The command keeps the model of the best epoch. If that is the last epoch, both scores are its scores.
    np.testing.assert_allclose(encoder.predict(TEXTS), vectors, atol=1e-5)


@pytest.mark.slow
def test_a_text_encoder_can_be_trained_saved_and_trained_again(tmp_path):
    encoder, scores = TextEncoder(CONFIG, VOCAB, objective="cosine", score_range=(0, 5)), [0, 1, 2, 3, 4, 5, 0, 1]
    encoder.compile(learning_rate=1e-2)
    history = encoder.fit(PAIRS, scores, epochs=4, verbose=0, validation_data=(PAIRS, scores)).history
    assert history["loss"][-1] < history["loss"][0]
    assert encoder.evaluate(PAIRS, scores, verbose=0, return_dict=True).keys() == {"loss", "spearman", "pearson"}
    encoder.save(tmp_path / "model.keras")
    loaded = TextEncoder.load(str(tmp_path / "model.keras"))
    assert loaded.spec == encoder.spec
    np.testing.assert_array_equal(loaded.predict(["the cat"]), encoder.predict(["the cat"]))
    loaded.fit(PAIRS, scores, verbose=0)
    encoder.save_checkpoint(str(tmp_path / "model"))
    assert TextEncoder.from_checkpoint(str(tmp_path / "model")).spec == encoder.spec


@pytest.mark.parametrize(("settings", "x", "y", "names"), [
    ({"objective": "cosine"}, PAIRS, None, ["labels", "x", "y"]),
    ({"objective": "cosine"}, PAIRS, [2.0] * 8, ["y[0]", 2.0, "0 to 1", "score_range"]),
    ({}, PAIRS, [1.0] * 8, ["y", "objective='cosine'"]), ({}, ["the cat"], None, ["x[0]", "'the cat'", "pairs"]),
    ({}, (["a"], ["b", "c"]), None, ["x", "1, 2"]), ({}, (["a", "b"], ["c", " "]), None, ["text 1", "column 1", "x"]),
    ({"objective": "triplet"}, PAIRS, None, ["x[0]", PAIRS[0], "triplets"]),
    ({"objective": "other"}, PAIRS, None, ["objective", "'other'", "ranking, cosine, triplet"]),
    ({"dimensions": (9,)}, PAIRS, None, ["dimensions", 9, 1, 8]),
])  # fmt: skip
def test_invalid_embedding_tasks_are_rejected_in_one_line(settings, x, y, names):
    (line,) = refusal(lambda: TextEncoder(CONFIG, VOCAB, **settings).fit(x, y)).splitlines()
    assert_mentions(line, *names)


def test_features_refuses_other_settings_than_those_of_the_trained_model(folder, tmp_path):
    texts = write_text(tmp_path / "texts.txt", "the cat\n")
    options = FeatureOptions(str(folder / "run"), texts, str(tmp_path / "vectors.parquet"), pooling="trained")
    plain = str(tmp_path / "plain")
    TextEncoder.from_checkpoint(str(folder / "run"), normalize=False).save_checkpoint(plain)
    refused = [("layers", ["-2"], "['-1']", options.init), ("max_seq_length", 12, "16", options.init)]
    refused += [("normalize", True, "False", plain), ("normalize", False, "True", options.init)]
    for name, value, trained, init in refused:
        changed = dataclasses.replace(options, **{name: value}, init=init, given_flags=frozenset({name}))
        assert_rejected(("--pooling=trained", f"--{name}", init, trained), feature_extraction.write_vectors, changed)
    TextEncoder.from_checkpoint(str(folder / "run"), pooling="pooled").save_checkpoint(str(tmp_path / "pooled"))
    changed = dataclasses.replace(options, init=str(tmp_path / "pooled"))
    assert_rejected(("--pooling=trained", changed.init, "export"), feature_extraction.write_vectors, changed)


def test_exports_answer_with_normalized_vectors(folder, vectors, tmp_path):
    """Each export is verified when it is written. Here the command checks it again."""
    pairs, answers = str(folder / "pairs.jsonl"), tmp_path / "answers.jsonl"
    export(folder / "run", tmp_path / "export", "onnx", eval_file=pairs)
    batch_prediction.predict(BatchPredictionOptions(str(tmp_path / "export"), pairs, str(answers)))
    found = [json.loads(line)["vector"] for line in answers.read_text().splitlines()]
    np.testing.assert_allclose(found, vectors, atol=1e-5)
