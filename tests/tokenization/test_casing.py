"""Detecting the casing of a vocabulary, and settings that contradict it."""

import pytest

import official_bert
from official_bert.keras_models import text_model
from official_bert.keras_models.preprocessor import Preprocessor
from official_bert.tokenization import casing as casings
from official_bert.tokenization import exact
from official_bert.tokenization.casing import UNCASED, detect_lower_case
from official_bert.tokenization.exact import SPECIAL_TOKENS, load_vocab, parse_vocab
from tests.make import WORDS, assert_mentions, assert_rejected, tiny_config
from tests.tokenization.test_exact import CASED

RELEASED = {"uncased": (True, "a"), "cased": (False, "A"), "chinese": (None, "")}
RELEASED |= {f"multilingual-{name}": RELEASED[name] for name in ("uncased", "cased")}


@pytest.mark.parametrize("name", RELEASED)
def test_released_vocabularies_show_their_casing(test_data, name):
    path, (is_uncased, piece) = test_data / "vocab" / f"bert-base-{name}-vocab.txt", RELEASED[name]
    vocab = load_vocab(str(path))
    assert detect_lower_case(vocab)[0] is is_uncased
    assert casings.has_accents(path.read_text()) == (is_uncased is False)
    assert casings.infer_casing(vocab, None) == (CASED if is_uncased is False else UNCASED)
    for lower in (True, False):
        problem = casings.describe_contradiction(vocab, lower, "vocab.txt", "pass")
        assert (problem is None) == (is_uncased in (None, lower))
        if problem:
            assert_mentions(problem, "vocab.txt", repr(piece), f"--do_lower_case={str(not lower).lower()}")


def test_composed_letters_have_accents():
    assert casings.has_accents("caf\u00e9")


PIECES = [
    (["привет", "##ы", "мир", "."], True),
    (["საქართველო", "##ი", "."], None),  # Georgian
    (["ab"] * 49 + ["Ab"], None),  # exactly one in fifty
    (["ab"] * 48 + ["Ab"] + ["."] * 50, False),
    (["ab", "."], None),  # exactly half of them
    ([f"{letter}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"] * 4 + ["COVID"], None),  # a name was added
    ([], None),
]


@pytest.mark.parametrize(("pieces", "is_uncased"), PIECES)
def test_other_vocabularies_show_their_casing(pieces, is_uncased):
    assert detect_lower_case([*SPECIAL_TOKENS, "[unused1]", "<S>", *pieces])[0] is is_uncased


def test_keras_models_use_the_casing_of_their_vocabulary(monkeypatch):
    vocab = "\n".join("The" if word == "the" else word.upper() for word in WORDS)
    parsed = []
    for module in (exact, text_model):
        monkeypatch.setattr(module, "parse_vocab", lambda text: parsed.append(text) or parse_vocab(text))
    assert official_bert.TextEncoder(tiny_config(), vocab).casing == CASED
    assert parsed == [vocab]  # once
    preprocessor = Preprocessor(vocab)
    assert preprocessor.get_config().items() >= {"do_lower_case": False, "max_seq_length": 128}.items()
    assert preprocessor(["The"])["input_ids"].numpy().tolist() == [[2, WORDS.index("the"), 3]]


@pytest.mark.parametrize(("words", "casing_argument"), [(["The", "And"], True), (["the", "and"], False)])
def test_keras_constructors_reject_a_casing_that_contradicts_the_vocabulary(words, casing_argument):
    vocab = "\n".join([*SPECIAL_TOKENS, *words]) + "\n"
    names = ("do_lower_case", casing_argument, repr(words[0]))
    assert_rejected(names, official_bert.TextEncoder, tiny_config(vocab_size=7), vocab, do_lower_case=casing_argument)
    assert_rejected(names, Preprocessor, vocab, do_lower_case=casing_argument)


def test_keras_models_accept_a_contradicting_casing_from_a_file():
    vocab = "\n".join([*SPECIAL_TOKENS, "The", "And"]) + "\n"
    model = official_bert.TextEncoder(tiny_config(vocab_size=7), vocab, do_lower_case=UNCASED)
    assert Preprocessor.from_config(model.preprocessor.get_config()).get_config()["do_lower_case"] is True
    assert type(model).from_config(model.get_config()).casing == model.casing == UNCASED
