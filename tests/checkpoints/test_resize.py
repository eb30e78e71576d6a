"""Adding tokens and extending the number of positions."""

import dataclasses
import pathlib

import numpy as np
import pytest

from official_bert.checkpoints import parity, resize
from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.checkpoints.formats import tf1
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.modeling.config import BertConfig
from tests.checkpoints.checkpoint_samples import add_optimizer_state, convert, sample
from tests.conftest import WORDS
from tests.make import assert_rejected

WORD_TABLE, BIAS, POSITIONS = "word_embeddings/embeddings", "masked_lm_output/bias", "position_embeddings/embeddings"
PIECES = {
    "running": "r ##u ##n ##n ##ing",
    "##ming": "m ##ing",
    "dogs": "dog ##s",
    "<user>": "u ##s ##e ##r",  # < and > are not in the vocabulary
    "日": "",
}


def assert_mean(before: LoadedModel, after: LoadedModel, row: int, token: str) -> None:
    """Asserts that the row of a new token is the mean of the rows of its pieces, or of all tokens if it has none."""
    rows = [WORDS.index(piece) for piece in PIECES[token].split()] or range(len(WORDS))
    for name in (WORD_TABLE, BIAS):
        expected = before.weights[name][rows].mean(axis=0)
        np.testing.assert_allclose(after.weights[name][row], expected, rtol=1e-5, atol=1e-7)


def test_new_tokens_are_initialized_with_the_mean_of_their_pieces(tiny_config: BertConfig):
    before = sample(tiny_config)
    after = resize.add_tokens(before, ["running", "##ming"])[0]
    assert after.config.vocab_size == 80
    assert split_vocab(after.vocab) == [*WORDS, "running", "##ming"]
    np.testing.assert_array_equal(after.weights[WORD_TABLE][:78], before.weights[WORD_TABLE])
    assert_mean(before, after, 78, "running")
    assert_mean(before, after, 79, "##ming")
    assert parity.compute_outputs(after)["masked_lm_logits"].shape[-1] == 80
    padded = sample(dataclasses.replace(tiny_config, vocab_size=len(WORDS) + 10))
    grown, unknown = resize.add_tokens(padded, ["日", "running"], "append")
    assert_mean(padded, grown, len(WORDS), "日")
    assert unknown == ["日"]


def test_markers_become_added_tokens_that_texts_contain(tiny_config: BertConfig, tmp_path: pathlib.Path):
    before = sample(tiny_config)
    tf1.write(before, str(tmp_path / "google"))
    (tmp_path / "new.txt").write_text("[E1]\r\ndogs\r<user>\n日\n", encoding="utf-8")
    lines = convert(tmp_path / "google", tmp_path / "out", new_tokens_file=str(tmp_path / "new.txt"), to_format="tf1")
    assert any("4 tokens in new rows" in line and "were [UNK]: [E1], 日" in line for line in lines)
    after = open_model(str(tmp_path / "out"))
    ids, _ = after.tokenizer.encode(["[E1] the dogs[E1]<user>!"])
    assert ids.tolist() == [78, WORDS.index("the"), 79, 78, 80, WORDS.index("!")]
    assert_mean(before, after, 80, "<user>")
    assert_mean(before, after, 81, "日")


def test_new_tokens_can_replace_unused_ones(tiny_config: BertConfig):
    words = [*WORDS[:70], "[unused0]", "[unused1]", *WORDS[72:]]
    before = dataclasses.replace(sample(tiny_config), vocab="".join(f"{word}\n" for word in words))
    after = resize.add_tokens(before, ["dogs"], "unused")[0]
    assert split_vocab(after.vocab) == [*words[:70], "dogs", *words[71:]]
    assert after.config == before.config
    assert_mean(before, after, 70, "dogs")
    unchanged = [np.delete(one.weights[WORD_TABLE], 70, 0) for one in (before, after)]
    np.testing.assert_array_equal(*unchanged)
    names = (3, 2, "--new_token_rows=unused_first")
    assert_rejected(names, resize.add_tokens, before, ["dogs", "cats", "mats"], "unused")
    more = resize.add_tokens(before, ["dogs", "cats", "mats"], "unused_first")[0]
    assert split_vocab(more.vocab) == [*words[:70], "dogs", "cats", *words[72:], "mats"]
    assert_mean(before, more, 70, "dogs")
    assert len(more.weights[WORD_TABLE]) == len(more.weights[BIAS]) == more.config.vocab_size == len(words) + 1


@pytest.mark.parametrize("tokens", [["cat"], ["dogs", "dogs"], ["Dogs"], ["a-b"]])
def test_useless_new_tokens_are_rejected(tokens: list[str], tiny_config: BertConfig):
    assert_rejected(repr(tokens[-1]), resize.add_tokens, sample(tiny_config), tokens)


def test_positions_are_tiled_or_interpolated(tiny_config: BertConfig):
    before = sample(tiny_config)
    table = before.weights[POSITIONS]  # [32, H]
    tiled = resize.extend_positions(before, 80)
    assert tiled.config.max_position_embeddings == 80
    np.testing.assert_array_equal(tiled.weights[POSITIONS], [*table, *table, *table[:16]])
    stretched = resize.extend_positions(before, 63, "interpolated").weights[POSITIONS]
    np.testing.assert_allclose(stretched[::2], table, rtol=1e-6)
    np.testing.assert_allclose(stretched[1::2], (table[:-1] + table[1:]) / 2, rtol=1e-5, atol=1e-7)
    for length in (31, 32):
        assert_rejected((32, length), resize.extend_positions, before, length)
    for change in (resize.extend_positions, lambda model, _: resize.add_tokens(model, ["dogs"])):
        assert_rejected("--optimizer", change, add_optimizer_state(before), 80)
