import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints import loading
from official_bert.checkpoints.loading import Loaded
from official_bert.errors import UserError
from official_bert.inference.fill_mask import fill_mask, fill_masks, print_candidates
from official_bert.inference.options import FillMaskOptions
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.exact import FullTokenizer
from tests.conftest import WORDS
from tests.make import refusal, run_python, write_run, write_vocab


@pytest.fixture
def model_dir(tiny_config: BertConfig, vocab_file: str, tmp_path: pathlib.Path) -> str:
    """A run whose model answers "cat" to every input."""
    model = build_pretraining_model(tiny_config, seed=0)
    bias = np.zeros(len(WORDS), "float32")
    bias[WORDS.index("cat")], bias[WORDS.index("dog")] = 5.0, 4.0
    next(variable for variable in model.variables if variable.path == "masked_lm_output/bias").assign(bias)
    return write_run(tmp_path / "run", model, tiny_config, vocab_file)


def test_every_mask_gets_its_candidates_best_first(model_dir: str):
    loaded = loading.load_pretraining_model(model_dir)
    first, second = fill_mask(loaded, "The [MASK] sat on the [MASK].", top_k=len(WORDS))
    for candidates in (first, second):
        assert [candidate.token for candidate in candidates[:2]] == ["cat", "dog"]
        probabilities = [candidate.probability for candidate in candidates]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1.0)


def test_candidates_match_the_logits(tiny_config: BertConfig, vocab_file: str):
    tokenizer = FullTokenizer(vocab_file)
    model = build_pretraining_model(tiny_config, seed=1)
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", "the", "[MASK]", "sat", "[SEP]"])
    features = {"input_ids": [ids], "input_mask": [[1] * 5], "segment_ids": [[0] * 5], "masked_lm_positions": [[2]]}
    logits = model({name: np.array(value) for name, value in features.items()})["masked_lm_logits"][0, 0]
    expected = tf.nn.softmax(logits).numpy()
    (candidates,) = fill_mask(Loaded(model, tiny_config, tokenizer), "the [MASK] sat", top_k=3)
    best = np.argsort(-expected)[:3]
    assert [candidate.token for candidate in candidates] == [WORDS[index] for index in best]
    assert [candidate.probability for candidate in candidates] == pytest.approx(list(expected[best]), rel=1e-4)


def test_vocabulary_may_have_equal_lines(tiny_config: BertConfig, tmp_path: pathlib.Path):
    tokenizer = FullTokenizer(write_vocab(tmp_path / "vocab.txt", [*WORDS[:40], "cat", *WORDS[41:]]))
    (candidates,) = fill_mask(Loaded(build_pretraining_model(tiny_config), tiny_config, tokenizer), "the [MASK]", 60)
    assert len({candidate.token for candidate in candidates}) == 60


@pytest.mark.parametrize(("text", "top_k", "message"), [
    ("the cat sat", 5, r"has no \[MASK\]"),
    ("[MASK]" + " cat" * 40, 5, "has 43 tokens; the model takes at most 32"),
    ("the [MASK]", 0, "top_k is 0"),
])  # fmt: skip
def test_invalid_text_or_top_k_is_rejected(
    text: str, top_k: int, message: str, tiny_config: BertConfig, vocab_file: str
):
    with pytest.raises(UserError, match=message):
        fill_mask(Loaded(build_pretraining_model(tiny_config), tiny_config, FullTokenizer(vocab_file)), text, top_k)


@pytest.mark.slow
def test_command_prints_candidates(model_dir: str):
    command = ("-m", "official_bert_cli", "fill-mask", f"--model_dir={model_dir}", "--top_k=2", "the [MASK] ran .")
    done = run_python(*command, environment={"TF_CPP_MIN_LOG_LEVEL": None})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "the [MASK] ran ."
    assert lines[1].split()[-1] == "cat"
    assert lines[2].split()[-1] == "dog"
    assert done.stderr == ""


def test_command_prints_json(model_dir: str, capsys: pytest.CaptureFixture[str]):
    texts = ["the [MASK] ran .", "[MASK] [MASK]"]
    print_candidates(FillMaskOptions(model_dir, top_k=2, json=True), texts)
    loaded = loading.load_pretraining_model(model_dir)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"text": text, "masks": [[dataclasses.asdict(each) for each in mask] for mask in masks]}
        for text, masks in zip(texts, fill_masks(loaded, texts, 2), strict=True)
    ]


def test_a_text_gets_the_same_candidates_alone_and_with_others(model_dir: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("official_bert.inference.fill_mask._TEXTS_AT_A_TIME", 2)
    loaded = loading.load_pretraining_model(model_dir)
    texts = ["the [MASK] ran .", "[MASK] [MASK] sat on the mat with the [MASK]", "[MASK]"]
    for text, masks in zip(texts, fill_masks(loaded, texts, 3), strict=True):
        alone = fill_mask(loaded, text, 3)
        assert [[each.token for each in mask] for mask in masks] == [[each.token for each in mask] for mask in alone]
        for mask, expected in zip(masks, alone, strict=True):
            assert [each.probability for each in mask] == pytest.approx([each.probability for each in expected])


def test_damaged_or_incomplete_folder_is_rejected(model_dir: str, tmp_path: pathlib.Path):
    folder = pathlib.Path(model_dir)
    with pytest.raises(UserError, match="there is no readable checkpoint .*empty"):
        loading.load_pretraining_model(str(tmp_path / "empty"))
    vocab = (folder / "vocab.txt").read_text()
    for cut in (vocab[:-20], vocab[: len(vocab) // 2]):
        (folder / "vocab.txt").write_text(cut)
        for load in (loading.load_pretraining_model, loading.load):  # used by fill_mask, and by the other commands
            assert "vocab.txt does not match its checksum; restore the folder from a copy" in refusal(load, model_dir)
    (folder / "vocab.txt").write_text(vocab)
    (folder / "checksums.json").unlink()
    (folder / "vocab.txt").rename(folder / "kept.txt")
    assert "has no vocabulary" in refusal(loading.load_pretraining_model, model_dir)
    (folder / "kept.txt").rename(folder / "vocab.txt")
    (folder / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json is damaged" in refusal(loading.load_pretraining_model, model_dir)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    for path in folder.glob("ckpt-*"):
        path.unlink()
    assert "holds no checkpoint of a known format" in refusal(loading.load_pretraining_model, model_dir)
