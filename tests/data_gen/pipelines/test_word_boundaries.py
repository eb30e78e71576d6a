"""Every pipeline masks the words of a word list as a whole."""

import json
import random

import numpy as np
import pytest

from official_bert.data import record_codec
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.data_gen.samples import LENGTH, make_records, parse_records
from tests.make import assert_rejected, write_text, write_vocab

CHARACTERS = [chr(code) for code in range(0x4E00, 0x4E40)]
FIRST = 2**15  # The id of the first character. Marked ids do not fit into 16 bits.
WORDS = ["".join(CHARACTERS[start : start + 4]) for start in range(0, 48, 4)]


def count_masked_words(batch: dict[str, np.ndarray]) -> tuple[int, int]:
    """Counts the words of the list that are masked completely and partly, except words cut off by the end of a record.

    The text is cut at random positions, so a word is identified by its first and last characters.
    """
    whole = part = 0
    hidden = np.zeros(batch["input_ids"].shape, bool)
    row, slot = np.nonzero(batch["masked_lm_weights"])
    hidden[row, batch["masked_lm_positions"][row, slot]] = True
    for ids, chosen in zip(record_codec.restore_masked_ids(batch), hidden, strict=True):
        for start in range(LENGTH - 3):
            first = ids[start] - FIRST
            if first in range(0, 48, 4) and np.array_equal(ids[start : start + 4], ids[start] + np.arange(4)):
                count = chosen[start : start + 4].sum()
                whole += count == 4
                part += 0 < count < 4
    return int(whole), int(part)


@pytest.mark.parametrize("algorithm", ["fast", "reference"])
def test_listed_words_are_masked_completely_and_nothing_else_changes(algorithm, tmp_path):
    rng = random.Random(0)
    # Text of four-character words and single characters. Each sentence ends with a word of two unknown characters.
    documents = [
        "\n".join("".join(rng.choices([*WORDS, *CHARACTERS[48:]], k=9)) + "龍龍" for _ in range(12)) for _ in range(60)
    ]
    text = write_text(tmp_path / "text.txt", "\n\n".join(documents))
    unused = [f"[unused{number}]" for number in range(FIRST - len(SPECIAL_TOKENS))]
    corpus = [text], write_vocab(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, *unused, *CHARACTERS])
    flags = {"algorithm": algorithm, "num_shards": 1, "do_whole_word_mask": True}
    summary = make_records(corpus, tmp_path / "plain", **flags)
    flags["word_boundaries"] = write_vocab(tmp_path / "words.txt", [*WORDS, "龍龍"])
    statistics = make_records(corpus, tmp_path / "marked", **flags)
    assert statistics["text_unknown"] == summary["text_unknown"] == 2 * 720  # the words at the ends of sentences
    marked, plain = (parse_records(tmp_path / name) for name in ("marked", "plain"))
    whole, part = count_masked_words(marked)
    assert whole > 100
    assert part == 0
    assert count_masked_words(plain)[1] > 100
    assert marked["input_ids"].max() < FIRST + len(CHARACTERS)
    if algorithm == "fast":
        ids = [record_codec.restore_masked_ids(batch) for batch in (marked, plain)]  # masking draws before the shuffle
        assert np.array_equal(*(each[np.lexsort(each.T)] for each in ids))
    manifests = [json.loads((tmp_path / name / "out.manifest.json").read_text()) for name in ("marked", "plain")]
    assert manifests[0]["source"]["flags"]["word_boundaries"].startswith("sha256: ")
    assert "word_boundaries" not in manifests[1]["source"]["flags"]


def test_an_unknown_segmenter_is_refused(corpus, tmp_path):
    flags = {"do_whole_word_mask": True, "word_boundaries": "jeiba"}
    assert_rejected(("--word_boundaries", "jeiba", "jieba"), make_records, corpus, tmp_path, **flags)
    assert not list(tmp_path.iterdir())
