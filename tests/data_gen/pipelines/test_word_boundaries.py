"""Every pipeline masks the words of a word list as a whole."""

import json
import pathlib
import random

import numpy as np
import pytest

from data_gen.pipelines.summary import RecordSummary
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.data_gen.samples import LENGTH, Corpus, contents, make_records, parsed, unmasked
from tests.make import assert_refused, refusal, write_text, write_vocab

CHARACTERS = [chr(code) for code in range(0x4E00, 0x4E40)]
WORDS = ["".join(CHARACTERS[start : start + 4]) for start in range(0, 48, 4)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Text of four-character words and single-character words, with a vocabulary and a word list."""
    folder = tmp_path_factory.mktemp("chinese")
    rng = random.Random(0)
    units = [*WORDS, *CHARACTERS[48:]]
    documents = ["\n".join("".join(rng.choices(units, k=9)) + "。" for _ in range(12)) for _ in range(60)]
    write_vocab(folder / "words.txt", WORDS)
    text = write_text(folder / "text.txt", "\n\n".join(documents))
    return [text], write_vocab(folder / "vocab.txt", [*SPECIAL_TOKENS, *CHARACTERS])


def make_marked(corpus: Corpus, folder: pathlib.Path, **changes: object) -> RecordSummary:
    words = str(pathlib.Path(corpus[1]).with_name("words.txt"))
    return make_records(corpus, folder, **{"do_whole_word_mask": True, "word_boundaries": words, **changes})


def masked_words(batch: dict[str, np.ndarray]) -> tuple[int, int]:
    """Counts the words of the list that are masked completely and partly, except words cut off by the end of a record.

    The text is cut at random positions, so a word is identified by its first and last characters.
    """
    whole = part = 0
    masks = batch["masked_lm_positions"], batch["masked_lm_weights"]
    for ids, positions, weights in zip(unmasked(batch), *masks, strict=True):
        hidden = np.zeros(LENGTH, bool)
        hidden[positions[weights > 0]] = True
        for start in range(LENGTH - 3):
            first = ids[start] - len(SPECIAL_TOKENS)
            if first in range(0, 48, 4) and np.array_equal(ids[start : start + 4], ids[start] + np.arange(4)):
                whole += hidden[start : start + 4].all()
                part += hidden[start : start + 4].any() and not hidden[start : start + 4].all()
    return int(whole), int(part)


def test_listed_words_are_masked_completely_and_nothing_else_changes(corpus: Corpus, tmp_path: pathlib.Path):
    make_marked(corpus, tmp_path / "marked")
    make_records(corpus, tmp_path / "plain", do_whole_word_mask=True)
    with_words, without = (parsed(sorted((tmp_path / name).glob("*.tfrecord"))) for name in ("marked", "plain"))
    whole, part = masked_words(with_words)
    assert whole > 100
    assert part == 0
    assert masked_words(without)[1] > 100
    assert with_words["input_ids"].max() < len(SPECIAL_TOKENS) + len(CHARACTERS)
    order = [np.lexsort(unmasked(each).T) for each in (with_words, without)]  # masking draws before the shuffle
    assert np.array_equal(unmasked(with_words)[order[0]], unmasked(without)[order[1]])
    manifests = [(tmp_path / name / "out.manifest.json").read_text() for name in ("marked", "plain")]
    flags = [json.loads(each)["source"]["flags"] for each in manifests]
    assert flags[0]["word_boundaries"].startswith("sha256: ")
    assert "word_boundaries" not in flags[1]


def test_one_and_two_workers_make_the_same_records(corpus: Corpus, tmp_path: pathlib.Path):
    for number, name in ((1, "one"), (2, "two")):
        make_marked(corpus, tmp_path / name, num_workers=number)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_reference_algorithm_masks_listed_words_together(corpus: Corpus, tmp_path: pathlib.Path):
    summary = make_marked(corpus, tmp_path, algorithm="reference", num_shards=1, dupe_factor=1)
    assert summary.text_unknown == 720  # the periods
    whole, part = masked_words(parsed([tmp_path / "out.tfrecord"]))
    assert whole > 50
    assert part == 0


def test_records_of_different_word_lists_are_not_mixed(corpus: Corpus, tmp_path: pathlib.Path):
    make_marked(corpus, tmp_path / "out")
    words = write_vocab(tmp_path / "words.txt", WORDS[1:])
    told = refusal(make_marked, corpus, tmp_path / "out", word_boundaries=words)
    assert "--word_boundaries was " in told
    (tmp_path / "out" / "out.manifest.json").unlink()
    (tmp_path / "out" / "out.work" / "another").mkdir(parents=True)
    told = refusal(make_marked, corpus, tmp_path / "out", word_boundaries=words)
    assert "contains the unfinished work of a different run" in told


def test_an_unknown_segmenter_is_refused(corpus: Corpus, tmp_path: pathlib.Path):
    message = "--word_boundaries is 'jeiba', which is neither a file nor a segmenter"
    assert_refused(message, make_marked, corpus, tmp_path, word_boundaries="jeiba")
    assert not list(tmp_path.iterdir())
