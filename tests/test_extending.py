"""The patches and the new kind of docs/guides/extending.md, applied to a copy of the repository, work as described."""

import itertools
import pathlib
import re
import shutil
import subprocess
import textwrap
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data.record_reader import read_file
from official_bert.runs.training_log import TRAIN, read_log
from tests.make import ROOT, VOCAB, WORDS, run_python, tiny_config, write_text, write_vocab

_PAGE = (ROOT / "docs" / "guides" / "extending.md").read_text(encoding="utf-8")
_PATCHES = dict(re.findall(r"\*\*(.*?)\.\*\*.*?```diff\n(.*?)```", _PAGE, re.DOTALL))
_SIZES = ["--max_seq_length=32", "--max_predictions_per_seq=6"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a vocabulary, a configuration and text."""
    folder, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    write_vocab(folder / "vocab.txt")
    write_text(folder / "config.json", tiny_config(num_hidden_layers=1, initializer_range=0.2).to_json())
    words = [word for word in WORDS if word.isalpha()]
    documents = ["\n".join(" ".join(rng.choice(words, 9)) for _ in range(8)) for _ in range(20)]
    write_text(folder / "text.txt", "\n\n".join(documents) + "\n")
    make_records(ROOT, folder, folder / "words.tfrecord")
    return folder


@pytest.fixture
def patched(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the repository with one of the patches applied."""
    for name in ("official_bert", "data_gen", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "official_bert_cli.py", tmp_path)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=_PATCHES[request.param], text=True, check=True)
    return tmp_path


def run(tree: pathlib.Path, *arguments: Any, status: int = 0) -> str:
    """Runs a command and returns its output, or its error message if it should fail with another status."""
    command = ("-m", "official_bert_cli", *map(str, arguments))
    done = run_python(*command, folder=tree, environment={"PYTHONPATH": str(tree)})
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def make_records(tree: pathlib.Path, corpus: pathlib.Path, output: pathlib.Path) -> list[list[int]]:
    """Makes records with whole-word masking, and returns the masked positions of each."""
    flags = [f"--input_file={corpus / 'text.txt'}", f"--vocab_file={corpus / 'vocab.txt'}", f"--output_file={output}"]
    run(tree, "make-records", *flags, *_SIZES, "--do_whole_word_mask", "--masked_lm_prob=0.2", "--num_workers=1")
    features = [tf.train.Example.FromString(record).features.feature for record in read_file(str(output))]
    return [[each for each in feature["masked_lm_positions"].int64_list.value if each] for feature in features]


def pretrain(tree: pathlib.Path, corpus: pathlib.Path, output: pathlib.Path) -> tuple[str, list[dict[str, Any]]]:
    """Trains three steps on one CPU, as users do, and returns the output and the lines of the log."""
    flags = [f"--vocab_file={corpus / 'vocab.txt'}", f"--bert_config_file={corpus / 'config.json'}", *_SIZES]
    flags += [f"--input_file={corpus / 'words.tfrecord'}", f"--output_dir={output}", "--train_batch_size=8"]
    flags += ["--do_train", "--num_train_steps=3", "--num_warmup_steps=0", "--log_steps=1", "--learning_rate=0.01"]
    return run(tree, "pretrain", *flags), read_log(str(output), TRAIN)


def test_patches_apply():
    assert set(_PATCHES) == {"Attention", "Masking", "Loss", "Learning rate"}  # The slow tests name them.
    for patch in _PATCHES.values():
        subprocess.run(["git", "apply", "--check", "-"], cwd=ROOT, input=patch, text=True, check=True)


@pytest.fixture(scope="module")
def unchanged(corpus: pathlib.Path) -> list[dict[str, Any]]:
    """The log of a training run without a patch."""
    return pretrain(ROOT, corpus, corpus / "run")[1]


@pytest.mark.slow
@pytest.mark.parametrize("patched", ["Attention"], indirect=True)
def test_the_attention_patch_is_trained(patched: pathlib.Path, corpus: pathlib.Path, unchanged: Any):
    told, log = pretrain(patched, corpus, patched / "run")
    assert "modeling/fast/compiled_blocks.py" in told
    # The bias starts at zero: the first step has the same loss, and changes the bias.
    assert log[0]["masked_lm_loss"] == pytest.approx(unchanged[0]["masked_lm_loss"], rel=1e-5)
    reader = tf.train.load_checkpoint(str(patched / "run" / "ckpt-3"))
    biases = [name for name, shape in reader.get_variable_to_shape_map().items() if shape == [65, 2]]
    assert max(np.abs(reader.get_tensor(name)).max() for name in biases) > 1e-3
    # The run and the model that is fine-tuned from it can be used. Formats without the weight are refused.
    assert "mat" in run(patched, "fill-mask", "--model_dir=run", "--top_k=78", "the cat sat on the [MASK] .")
    write_text(patched / "rows.csv", "text,label\nthe cat,good\nthe dog,bad\n")
    table = "--task=table --train_file=rows.csv --eval_file=rows.csv --max_seq_length=16"
    run(patched, "finetune", *table.split(), "--init=run", "--output_dir=model", "--do_train")
    code = "import official_bert; print(official_bert.TextClassifier.from_checkpoint('model').predict(['a']).shape)"
    loaded = run_python("-c", code, folder=patched, environment={"PYTHONPATH": str(patched)})
    assert "(1, 2)" in loaded.stdout, loaded.stderr
    message = run(patched, "export", "--model_dir=model", "--format=onnx", "--export_dir=onnx", status=1)
    assert "layer_0_attention_probabilities/distance_bias" in message


@pytest.mark.slow
@pytest.mark.parametrize("patched", ["Masking"], indirect=True)
def test_the_masking_patch_masks_spans(patched: pathlib.Path, corpus: pathlib.Path):
    def share_of_neighbors(records: list[list[int]]) -> float:
        pairs = [(a, b) for positions in records for a, b in itertools.pairwise(positions)]
        return sum(b == a + 1 for a, b in pairs) / len(pairs)

    words = make_records(ROOT, corpus, patched / "words.tfrecord")
    spans = make_records(patched, corpus, patched / "spans.tfrecord")
    assert share_of_neighbors(words) < 0.4
    assert share_of_neighbors(spans) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("patched", ["Loss"], indirect=True)
def test_the_loss_patch_is_trained(patched: pathlib.Path, corpus: pathlib.Path, unchanged: Any):
    _, log = pretrain(patched, corpus, patched / "run")
    assert log[0]["masked_lm_loss"] < unchanged[0]["masked_lm_loss"] - 1e-3
    assert abs(log[2]["gradient_norm"] - unchanged[2]["gradient_norm"]) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("patched", ["Learning rate"], indirect=True)
def test_the_learning_rate_patch_is_used(patched: pathlib.Path, corpus: pathlib.Path, unchanged: Any):
    _, log = pretrain(patched, corpus, patched / "run")
    left = np.array([1.0, 2 / 3, 1 / 3])
    for lines, expected in ((unchanged, left), (log, (1 - np.cos(np.pi * left)) / 2)):
        assert [line["learning_rate"] for line in lines] == pytest.approx(0.01 * expected)


TRAIN_AND_PREDICT = """
import sys
import keras
import numpy as np
import official_bert
from official_bert.inference import backends
from official_bert.kinds.all_kinds import create_spec

config = official_bert.BertConfig(len(sys.argv[1].splitlines()), 8, 1, 2, 16, max_position_embeddings=16)
model = official_bert.OrdinalClassifier(config, sys.argv[1], labels=[1, 2, 3], max_seq_length=8)
model.compile()
texts, labels = ["the cat", "the dog", "the mat", "the sun"] * 2, [1, 3, 2, 1] * 2
model.fit(texts, labels, batch_size=4, epochs=2, verbose=0)
predictions, spec = model.predict(texts), model.spec.task_spec("stars", 8)
assert "mean_rank_error" in model.spec.scores(predictions, model.spec.make_examples(texts, labels))
assert spec["kind"] == "ordinal"
assert create_spec(spec) == model.spec
model.save("model.keras")
np.testing.assert_array_equal(keras.saving.load_model("model.keras").predict(texts), predictions)
model.export("export")
answers = backends.load_predictor("export/1").run({"text": np.array(texts, object)})
np.testing.assert_allclose(answers["probabilities"], predictions, atol=1e-6)
"""


def code_blocks(language: str) -> list[str]:
    """Returns the code blocks of a language in the section about kinds."""
    section = _PAGE.partition("\n## A kind\n")[2].partition("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)]


def insert(path, before: str, lines: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{before!r} in {path}"
    path.write_text(text.replace(before, lines + before), encoding="utf-8")


@pytest.mark.slow
def test_a_kind_is_added_by_copying_a_folder(tmp_path):
    shutil.copytree(ROOT / "official_bert", tmp_path / "official_bert", ignore=shutil.ignore_patterns("__pycache__"))
    (copy_folder,) = code_blocks("bash")
    subprocess.run(["bash", "-e", "-c", copy_folder], cwd=tmp_path, check=True)
    score, public_class = code_blocks("python")
    package = tmp_path / "official_bert"
    insert(package / "kinds" / "ordinal" / "spec.py", "        return values\n", textwrap.indent(score, " " * 8))
    (package / "keras_models" / "ordinal_classifier.py").write_text(public_class, encoding="utf-8")
    name = "official_bert.keras_models.ordinal_classifier"
    insert(package / "__init__.py", "}\n_MODULE_OF", f'    "{name}": "OrdinalClassifier",\n')
    environment = {"PYTHONPATH": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = run_python("-c", TRAIN_AND_PREDICT, VOCAB, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
