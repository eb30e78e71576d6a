import functools
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.tokenization import exact
from official_bert.tokenization.casing import UNCASED, Casing, make_casing
from official_bert.tokenization.exact import BasicTokenizer, FullTokenizer, WordpieceTokenizer, is_punctuation
from tests.make import VOCAB, assert_rejected, write_text, write_vocab

CASED, ACCENTED = make_casing(do_lower_case=False), make_casing(strip_accents=False)
CASINGS = [UNCASED, CASED, ACCENTED]
# No released vocabulary is lower-cased with accents. The cased multilingual one has pieces with accents.
NAMES = {"uncased": UNCASED, "cased": CASED, "chinese": UNCASED}
REAL_VOCABULARIES = [(f"bert-base-{name}-vocab.txt", casing) for name, casing in NAMES.items()]
REAL_VOCABULARIES += [("bert-base-multilingual-cased-vocab.txt", casing) for casing in (CASED, ACCENTED)]
REAL_VOCABULARIES.append(("bert-base-multilingual-uncased-vocab.txt", UNCASED))

BLOCKS = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF F900-FAFF 2F800-2FA1F"
IDEOGRAPHS = [tuple(int(end, 16) for end in block.split("-")) for block in BLOCKS.split()]

# Every assigned code point in the categories that text can contain (surrogates cannot be encoded).
ASSIGNED = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]


def is_special(character: str) -> bool:
    is_changed = character != unicodedata.normalize("NFD", character.lower())
    return unicodedata.category(character)[0] in "CMPZ" or (is_changed and "HANGUL" not in unicodedata.name(character))


# The fast tests skip most of the letters, symbols, ideographs and syllables that no rule changes. They need the letters
# that the rules make: a vocabulary without them would turn right and wrong letters into [UNK].
SPECIAL = [chr(code) for code in ASSIGNED if is_special(chr(code))]
MADE = {*"".join(SPECIAL), *unicodedata.normalize("NFD", "".join(SPECIAL).lower()), *"ας"}
ENDS = {code for first, last in IDEOGRAPHS for code in (first - 1, first, last, last + 1)}
SOME = [code for code in ASSIGNED if code % 256 == 0 or code in ENDS or chr(code) in MADE]
with_code_points = pytest.mark.parametrize("codes", [SOME, pytest.param(ASSIGNED, marks=pytest.mark.slow)])
make_tokenizer = functools.cache(BasicTokenizer)


@functools.lru_cache(maxsize=1000)
def clean(character: str) -> str:
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    is_ideograph = any(first <= ord(character) <= last for first, last in IDEOGRAPHS)
    return f" {character} " if is_ideograph else character


def step_by_step(text: str, casing: Casing) -> list[str]:
    """Applies the documented rules one after the other, character by character, using only their definitions."""
    words = []
    for word in "".join(map(clean, text)).split():
        if casing.do_lower_case:
            word = word.lower()
        if casing.strip_accents:
            decomposed = unicodedata.normalize("NFD", word)
            word = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
        words += [f" {character} " if is_punctuation(character) else character for character in f"{word} "]
    return "".join(words).split()


def assert_exact(text: str, casing: Casing) -> None:
    tokenizer = make_tokenizer(*casing[:2])
    words = tokenizer.tokenize(text)
    assert words == step_by_step(text, casing), ascii(text)
    traced = tokenizer.tokenize_with_origins(text)
    assert [word for word, _ in traced] == words, ascii(text)
    for word, origins in traced:
        assert len(word) == len(origins)
        assert all(0 <= index < len(text) for index in origins)


@with_code_points
@pytest.mark.parametrize("casing", CASINGS)
def test_every_assigned_code_point_follows_the_documented_rules(casing, codes):
    assert len(ASSIGNED) > 140_000
    # At the start, middle and end of a word, by itself, and after letters that it might combine with.
    for code in codes:
        assert_exact(f"a{chr(code)}b {chr(code)} {chr(code)}the e{chr(code)} \u0391{chr(code)}", casing)


def test_punctuation_is_ascii_symbols_and_unicode_p():
    ascii_punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    assert [character for character in map(chr, range(128)) if is_punctuation(character)] == list(ascii_punctuation)
    for code in ASSIGNED[128:]:
        assert is_punctuation(chr(code)) == unicodedata.category(chr(code)).startswith("P")


TEXTS = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40)
# Marks, sigmas, ideographs and unusual spaces next to each other, in case the rules interfere.
TRICKY_CHARACTERS = "aA\u0130ıΣσςß\u0301\u0323\u0345\u302e\U0001d165\u00adé 中\u3000\u2028\u200b\t\n.,'-\0\ufffd"
TRICKY = st.text(alphabet=TRICKY_CHARACTERS, max_size=20)


@given(st.one_of(TEXTS, TRICKY), st.sampled_from(CASINGS))
@settings(max_examples=300)
def test_any_text_follows_the_documented_rules(text, casing):
    assert_exact(text, casing)


@given(st.text(alphabet="abcxyz", max_size=30), st.sets(st.text(alphabet="abcxyz", min_size=1, max_size=4)))
def test_pieces_spell_the_word_and_are_the_longest(word, known):
    vocab = {piece: index for index, piece in enumerate([*known, *("##" + piece for piece in known)])}
    pieces = WordpieceTokenizer(vocab).tokenize(word)
    if pieces == ["[UNK]"]:
        return
    start = 0
    for piece in pieces:
        end = start + len(piece.removeprefix("##"))
        prefix = "##" if start else ""
        ends = [each for each in range(start + 1, len(word) + 1) if prefix + word[start:each] in vocab]
        assert (piece, end) == (prefix + word[start:end], ends[-1])
        start = end
    assert start == len(word)


TOKENS = [
    ("Unaffable, cats!", ["un", "##aff", "##able", ",", "cat", "##s", "!"]),  # the published example
    ("\ufeffthe c\u00e1t ca\u0301t", ["the", "cat", "cat"]),
    ("cats cat€ cat", ["cat", "##s", "[UNK]", "cat"]),  # a word with an unknown end is unknown as a whole
    (b"caf\xc3\xa9 \xff ol\xe9 the", ["c", "##a", "##f", "##e", "o", "##l", "the"]),
    ("a" * 200, ["a"] + ["##a"] * 199),
    ("a" * 201, ["[UNK]"]),
]


@pytest.mark.parametrize(("text", "tokens"), TOKENS)
def test_texts_are_tokenized_as_in_the_original(text, tokens, vocab_file):
    tokenizer = FullTokenizer(vocab_file)
    assert tokenizer.tokenize(text) == tokens
    assert tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(tokens)) == tokens


def test_accents_are_deleted_only_in_lower_cased_text():
    arguments = ((), (True, True), (False,), (False, False), (True, False))
    words = [BasicTokenizer(*each).tokenize("\u00c1\u0323") for each in arguments]
    assert words == [["a"], ["a"], ["\u00c1\u0323"], ["\u00c1\u0323"], ["\u00e1\u0323"]]
    assert_rejected(("strip_accents", "true", "do_lower_case", "false"), BasicTokenizer, False, True)


def test_invalid_texts_tokens_and_ids_are_rejected(vocab_file):
    tokenizer = FullTokenizer(vocab_file)
    assert_rejected(("token", "'elephant'"), tokenizer.convert_tokens_to_ids, ["elephant"])
    assert_rejected(("id", 5000), tokenizer.convert_ids_to_tokens, [5000])
    assert_rejected(("int", "str", "UTF-8"), tokenizer.tokenize, 5)


def test_offsets_point_at_the_source(vocab_file):
    text = "  The CA\u0301T,\u00ad unaffable\u4e2d mats e\u0301"
    pieces = FullTokenizer(vocab_file).tokenize_with_offsets(text)
    assert [(piece.token, text[piece.start : piece.end]) for piece in pieces] == [
        ("the", "The"), ("cat", "CA\u0301T"), (",", ","), ("un", "un"), ("##aff", "aff"), ("##able", "able"),
        ("[UNK]", "\u4e2d"), ("mat", "mat"), ("##s", "s"), ("e", "e\u0301"),
    ]  # fmt: skip


def test_vocabulary_without_special_tokens_is_refused(tmp_path):
    lacking, late = "[PAD] [UNK] the", "the [UNK] [PAD] [CLS] [SEP] [MASK]"
    for lines, *names in ((lacking, 3, "[CLS], [SEP], [MASK]"), (late, "[PAD]", "line 3", "line 1")):
        path = write_vocab(tmp_path / "vocab.txt", lines.split())
        assert_rejected((path, *names), FullTokenizer, path)
        assert_rejected(("x", *names), FullTokenizer.from_vocab, lines.replace(" ", "\n"), source="x")
    assert_rejected(tmp_path / "none.txt", FullTokenizer, str(tmp_path / "none.txt"))
    assert_rejected("'bert/vocab.txt'", FullTokenizer.from_vocab, "bert/vocab.txt")


def test_vocabulary_may_be_text_or_a_mapping(vocab_file):
    expected = FullTokenizer(vocab_file, do_lower_case=False)
    for vocab in (VOCAB, exact.parse_vocab(VOCAB)):
        found = FullTokenizer.from_vocab(vocab, do_lower_case=False)
        assert (found.vocab, found.tokenize("The cat")) == (expected.vocab, expected.tokenize("The cat"))


def test_vocabulary_lines_are_stripped_and_the_last_of_equal_ones_counts(tmp_path):
    vocab = exact.load_vocab(write_text(tmp_path / "vocab.txt", "a \n b\r\na\nc"))
    assert list(vocab.items()) == [("a", 2), ("b", 1), ("c", 3)]
    assert exact.parse_vocab("a\n\n") == {"a": 0, "": 1}
    assert exact.parse_vocab("a\u2028b\n") == {"a\u2028b": 0}
