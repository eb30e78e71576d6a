"""Adding tokens and extending the number of positions."""

import dataclasses
import pathlib

import numpy as np
import pytest

from official_bert.checkpoints import conversion, parity, resize
from official_bert.checkpoints.formats import tf1
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from tests.checkpoints.checkpoint_samples import add_optimizer_state, conversion_options, sample
from tests.conftest import WORDS


def test_new_tokens_are_initialized_with_the_mean_of_their_pieces(tiny_config: BertConfig):
    before = sample(tiny_config)
    after = resize.add_tokens(before, ["running", "##ming", "[ENTITY]"])
    assert after.config.vocab_size == 81
    assert split_vocab(after.vocab) == [*WORDS, "running", "##ming", "[ENTITY]"]
    table, grown = (one.weights["word_embeddings/embeddings"] for one in (before, after))
    np.testing.assert_array_equal(grown[:78], table)
    np.testing.assert_allclose(grown[78], _mean(table, "running"), rtol=1e-6)
    np.testing.assert_allclose(grown[79], _mean(table, "ming"), rtol=1e-6)
    bias = before.weights["masked_lm_output/bias"]
    np.testing.assert_allclose(after.weights["masked_lm_output/bias"][79], _mean(bias, "ming"), rtol=1e-6)
    outputs = parity.compute_outputs(after)
    assert outputs["masked_lm_logits"].shape[-1] == 81


def _mean(table: np.ndarray, word: str) -> np.ndarray:
    pieces = {"running": ["r", "##u", "##n", "##n", "##ing"], "ming": ["m", "##ing"]}[word]
    return table[[WORDS.index(piece) for piece in pieces]].mean(axis=0)


def test_markers_become_added_tokens_that_texts_contain(tiny_config: BertConfig, tmp_path: pathlib.Path):
    tf1.write(sample(tiny_config), str(tmp_path / "google"))
    (tmp_path / "new.txt").write_text("[E1]\ndogs\n<user>\n")
    options = {"new_tokens_file": str(tmp_path / "new.txt"), "to_format": "tf1"}
    conversion.convert(conversion_options(tmp_path / "google", tmp_path / "out", **options))
    after = open_model(str(tmp_path / "out"))
    ids, _ = after.tokenizer.encode(["[E1] the dogs[E1]<user>!"])
    assert ids.tolist() == [78, WORDS.index("the"), 79, 78, 80, WORDS.index("!")]
    table, grown = (
        sample(tiny_config).weights["word_embeddings/embeddings"],
        after.weights["word_embeddings/embeddings"],
    )
    pieces = [WORDS.index(piece) for piece in ("u", "##s", "##e", "##r")]  # < and > are not in the vocabulary
    np.testing.assert_allclose(grown[80], table[pieces].mean(axis=0), rtol=1e-6)


def test_unknown_new_tokens_are_initialized_with_the_mean_of_all_rows(tiny_config: BertConfig, tmp_path: pathlib.Path):
    before = sample(tiny_config)
    tf1.write(before, str(tmp_path / "google"))
    (tmp_path / "new.txt").write_text("dogs\n日\n", encoding="utf-8")
    lines = conversion.convert(
        conversion_options(tmp_path / "google", tmp_path / "out", new_tokens_file=str(tmp_path / "new.txt"))
    )
    assert (
        "changed: 2 tokens in new rows, each initialized with the mean of the pieces that it was split into before "
        "(the mean of all rows for words that were [UNK]: 日)"
    ) in lines
    after = open_model(str(tmp_path / "out"))
    table, grown = (one.weights["word_embeddings/embeddings"] for one in (before, after))
    np.testing.assert_allclose(grown[79], table.mean(axis=0), rtol=1e-5)


def test_rows_beyond_the_vocabulary_are_excluded_from_the_mean(tiny_config: BertConfig):
    padded = sample(dataclasses.replace(tiny_config, vocab_size=len(WORDS) + 10))
    table = padded.weights["word_embeddings/embeddings"]
    grown = resize.add_tokens(padded, ["日"], "append").weights["word_embeddings/embeddings"]
    np.testing.assert_allclose(grown[len(WORDS)], table[: len(WORDS)].mean(axis=0), rtol=1e-5)


def test_new_tokens_can_replace_unused_ones(tiny_config: BertConfig):
    words = [*WORDS[:70], "[unused0]", "[unused1]", *WORDS[72:]]
    before = dataclasses.replace(sample(tiny_config), vocab="".join(f"{word}\n" for word in words))
    after = resize.add_tokens(before, ["dogs"], "unused")
    assert split_vocab(after.vocab) == [*words[:70], "dogs", *words[71:]]
    assert after.config == before.config
    table, changed = (one.weights["word_embeddings/embeddings"] for one in (before, after))
    expected = table[[WORDS.index("dog"), WORDS.index("##s")]].mean(axis=0)
    np.testing.assert_allclose(changed[70], expected, rtol=1e-6)
    np.testing.assert_array_equal(np.delete(changed, 70, 0), np.delete(table, 70, 0))
    with pytest.raises(UserError, match=r"3 new tokens, but only 2 \[unused...\] tokens"):
        resize.add_tokens(before, ["dogs", "cats", "mats"], "unused")
    more = resize.add_tokens(before, ["dogs", "cats", "mats"], "unused_first")
    assert split_vocab(more.vocab) == [*words[:70], "dogs", "cats", *words[72:], "mats"]
    table = more.weights["word_embeddings/embeddings"]
    np.testing.assert_allclose(table[70], expected, rtol=1e-6)
    assert len(table) == len(more.weights["masked_lm_output/bias"]) == more.config.vocab_size == len(words) + 1


@pytest.mark.parametrize(("tokens", "message"), [
    (["cat"], "'cat' is already in the vocabulary"),
    (["dogs", "dogs"], "'dogs' is already in the vocabulary or is listed twice"),
    (["Dogs"], "never occurs in tokenized text, because the uncased tokenizer splits or changes it: .'dogs'"),
    (["a-b"], "never occurs in tokenized text"),
])  # fmt: skip
def test_useless_new_tokens_are_rejected(tokens: list[str], message: str, tiny_config: BertConfig):
    with pytest.raises(UserError, match=message):
        resize.add_tokens(sample(tiny_config), tokens)


def test_positions_are_tiled_or_interpolated(tiny_config: BertConfig):
    before = sample(tiny_config)
    table = before.weights["position_embeddings/embeddings"]  # [32, H]
    tiled = resize.extend_positions(before, 80)
    assert tiled.config.max_position_embeddings == 80
    np.testing.assert_array_equal(tiled.weights["position_embeddings/embeddings"], [*table, *table, *table[:16]])
    stretched = resize.extend_positions(before, 63, "interpolated").weights["position_embeddings/embeddings"]
    np.testing.assert_allclose(stretched[::2], table, rtol=1e-6)
    np.testing.assert_allclose(stretched[1::2], (table[:-1] + table[1:]) / 2, rtol=1e-5, atol=1e-7)
    with pytest.raises(UserError, match="the model has 32 positions; expected a number greater than that, received 32"):
        resize.extend_positions(before, 32)
    with pytest.raises(UserError, match="remove --optimizer"):
        resize.extend_positions(add_optimizer_state(before), 80)
