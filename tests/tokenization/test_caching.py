"""The tokenizer without TensorFlow gives the exact tokenizer's ids, whatever the text."""

import pathlib
import random
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest

from official_bert.tokenization import caching
from official_bert.tokenization.caching import CachingTokenizer
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import FullTokenizer
from tests.tokenization.test_exact import ACCENTED, CASED, CASINGS

ODD = [
    "",
    " ",
    "\n",
    "a\nb",
    "\U0010ffff",
    "the \U0010ffff cat",
    "ΟΔΟΣ ΣΑΣ",
    "\u200b",
    "e\u0301 \u0301",
    "\ud800",
    "x" * 300,
    "don't",
    "日本語",
]


def assert_equal(tokenizer: CachingTokenizer, texts: list[str]) -> None:
    ids, splits = tokenizer.encode(texts)
    assert len(splits) == len(texts) + 1
    for number, text in enumerate(texts):
        expected = tokenizer.exact.convert_tokens_to_ids(tokenizer.exact.tokenize(text))
        assert ids[splits[number] : splits[number + 1]].tolist() == expected, ascii(text)


@pytest.mark.parametrize("casing", CASINGS)
def test_every_character_and_odd_texts(casing: Casing, vocab_file: str):
    tokenizer = CachingTokenizer(FullTokenizer(vocab_file, *casing))
    codes = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cs", "Co")][::37]
    assert_equal(tokenizer, [f"the{chr(code)}cat {chr(code)} {chr(code)}Sat" for code in codes])
    assert_equal(tokenizer, ODD)
    assert_equal(tokenizer, [])
    rng = random.Random(1)
    letters = [*"theca sT.,\u0301É\u200b\u3000ΣßⅣﬁ中𐍈", "\U0010ffff", "\u0903"]
    for _ in range(30):
        assert_equal(tokenizer, ["".join(rng.choices(letters, k=rng.randrange(30))) for _ in range(20)])


def test_long_texts_many_texts_and_a_full_cache(vocab_file: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(caching, "_BATCH_CHARACTERS", 40)
    monkeypatch.setattr(caching, "_CACHED_WORDS", 10)
    monkeypatch.setattr(caching, "_LONGEST_CACHED", 8)
    tokenizer = CachingTokenizer(FullTokenizer(vocab_file))
    rng = random.Random(2)
    words = ["the", "cat.", "unaffable", "dogs", "playing", "of", "zebra", "ΣΑΣ", "\u0903"]
    texts = [" ".join(rng.choices(words, k=rng.choice([0, 1, 3, 100]))) for _ in range(50)]
    assert_equal(tokenizer, [*texts, "the" * 50, "cat" + " " * 200])


def test_real_text(test_data: pathlib.Path):
    for vocab, casing in (
        ("bert-base-multilingual-cased-vocab.txt", CASED),
        ("bert-base-multilingual-cased-vocab.txt", ACCENTED),
        ("bert-base-multilingual-uncased-vocab.txt", UNCASED),
    ):
        tokenizer = CachingTokenizer(FullTokenizer(str(test_data / "vocab" / vocab), *casing))
        for path in sorted((test_data / "text").iterdir()):
            assert_equal(tokenizer, path.read_text(encoding="utf-8").splitlines()[::20])


def test_threads_share_what_is_remembered_of_words(vocab_file: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(caching, "_CACHED_WORDS", 5)  # so that words are forgotten while others are looked up
    tokenizer = CachingTokenizer(FullTokenizer(vocab_file))
    rng = random.Random(3)
    words = [f"{first}{second}" for first in ("the", "cat", "mat", "dog") for second in ("s", "ing", "ed", "x", "y")]
    texts = [" ".join(rng.choices(words, k=rng.randrange(1, 9))) for _ in range(400)]
    expected = [tokenizer.exact.convert_tokens_to_ids(tokenizer.exact.tokenize(text)) for text in texts]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            ids = list(threads.map(lambda text: tokenizer.encode([text])[0].tolist(), texts))
    finally:
        sys.setswitchinterval(before)
    assert ids == expected
