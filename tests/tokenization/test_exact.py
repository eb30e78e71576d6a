import pathlib
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.errors import UserError
from official_bert.tokenization.casing import UNCASED, Casing, make_casing
from official_bert.tokenization.exact import (
    BasicTokenizer,
    FullTokenizer,
    WordpieceTokenizer,
    is_punctuation,
    load_vocab,
    parse_vocab,
)
from tests.make import refusal, write_text

CASED, ACCENTED = make_casing(do_lower_case=False), make_casing(strip_accents=False)
CASINGS = [UNCASED, CASED, ACCENTED]
VOCABULARIES = {
    "bert-base-uncased-vocab.txt": UNCASED,
    "bert-base-cased-vocab.txt": CASED,
    "bert-base-chinese-vocab.txt": UNCASED,
    "bert-base-multilingual-cased-vocab.txt": CASED,
    "bert-base-multilingual-uncased-vocab.txt": UNCASED,
}
# No released vocabulary is lower-cased with accents. This one has pieces with accents.
REAL_VOCABULARIES = [*VOCABULARIES.items(), ("bert-base-multilingual-cased-vocab.txt", ACCENTED)]

# Every assigned code point in the categories that text can contain (surrogates cannot be encoded).
ASSIGNED = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]

# The fast tests skip most of the ideographs and syllables, which come in ranges of tens of thousands.
SOME = [code for code in ASSIGNED if code < 0x3400 or code % 16 == 0 or unicodedata.category(chr(code)) != "Lo"]
with_code_points = pytest.mark.parametrize(
    "codes", [pytest.param(SOME, id="some"), pytest.param(ASSIGNED, id="all", marks=pytest.mark.slow)]
)


def step_by_step(text: str, casing: Casing) -> list[str]:
    """Applies the documented rules one after the other, character by character, using only their definitions."""
    blocks = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF F900-FAFF 2F800-2FA1F"
    ranges = [tuple(int(end, 16) for end in block.split("-")) for block in blocks.split()]
    spaced = ""
    for character in text:
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            spaced += " "
        elif character not in "\0\ufffd" and category not in ("Cc", "Cf"):
            ideograph = any(first <= ord(character) <= last for first, last in ranges)
            spaced += f" {character} " if ideograph else character
    words = []
    for word in spaced.split():
        if casing.do_lower_case:
            word = word.lower()
        if casing.strip_accents:
            decomposed = unicodedata.normalize("NFD", word)
            word = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
        current = ""
        for character in word:
            if is_punctuation(character):
                words += [current, character]
                current = ""
            else:
                current += character
        words.append(current)
    return " ".join(words).split()


@with_code_points
@pytest.mark.parametrize("casing", CASINGS)
def test_every_assigned_code_point_follows_the_documented_rules(casing: Casing, codes: list[int]):
    assert len(ASSIGNED) > 140_000
    tokenizer = BasicTokenizer(*casing[:2])
    # At the start, middle and end of a word, by itself, and after a letter that it might combine with.
    for code in codes:
        text = f"a{chr(code)}b {chr(code)} {chr(code)}the e{chr(code)}"
        assert tokenizer.tokenize(text) == step_by_step(text, casing), f"U+{code:04X}"


@with_code_points
@pytest.mark.parametrize("casing", CASINGS)
def test_offsets_agree_with_tokens_on_every_assigned_code_point(casing: Casing, codes: list[int]):
    tokenizer = BasicTokenizer(*casing[:2])
    for code in codes:
        text = f"a{chr(code)}b \u0391{chr(code)}"
        assert [word for word, _ in tokenizer.tokenize_with_origins(text)] == tokenizer.tokenize(text), f"U+{code:04X}"


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
@settings(max_examples=1000)
def test_any_text_follows_the_documented_rules(text: str, casing: Casing):
    tokenizer = BasicTokenizer(*casing[:2])
    words = tokenizer.tokenize(text)
    assert words == step_by_step(text, casing)
    traced = tokenizer.tokenize_with_origins(text)
    assert [word for word, _ in traced] == words
    for word, origins in traced:
        assert len(word) == len(origins)
        assert all(0 <= index < len(text) for index in origins)


@given(st.text(alphabet="abcxyz", max_size=30), st.sets(st.text(alphabet="abcxyz", min_size=1, max_size=4)))
def test_pieces_spell_the_word_and_are_the_longest(word: str, known: set[str]):
    vocab = {piece: index for index, piece in enumerate([*known, *("##" + piece for piece in known)])}
    pieces = WordpieceTokenizer(vocab).tokenize(word)
    if pieces == ["[UNK]"]:
        return
    assert "".join(piece.removeprefix("##") for piece in pieces) == word
    start = 0
    for number, piece in enumerate(pieces):
        assert piece in vocab
        length = len(piece.removeprefix("##"))
        longer = [word[start : start + more] for more in range(length + 1, len(word) - start + 1)]
        assert not any(("##" if number else "") + other in vocab for other in longer)
        start += length


def test_published_example_is_cut_as_published(vocab_file: str):
    tokenizer = FullTokenizer(vocab_file, do_lower_case=True)
    assert tokenizer.tokenize("Unaffable, cats!") == ["un", "##aff", "##able", ",", "cat", "##s", "!"]


def test_byte_order_marks_change_nothing_and_normal_forms_only_what_is_cased(vocab_file: str):
    assert FullTokenizer(vocab_file).tokenize("\ufeffthe c\u00e1t ca\u0301t") == ["the", "cat", "cat"]
    cased = FullTokenizer.from_vocab("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\u00e9\n", do_lower_case=False)
    assert cased.tokenize("\ufeff\u00e9 e\u0301") == ["\u00e9", "[UNK]"]


def test_lower_case_keeps_accents_on_request():
    words = ["\u00e1\u0323", "a\u0323\u0301", "i\u0307", "\u03c3\u03b1\u03c2", "\uac01", "\u4e2d", "\u0915\u093f\u0902"]
    text = "\u00c1\u0323 A\u0323\u0301 \u0130 \u03a3\u0391\u03a3 \uac01\u4e2d\u0915\u093f\u0902"
    assert BasicTokenizer(strip_accents=False).tokenize(text) == words
    assert BasicTokenizer(True, True).tokenize(text) == BasicTokenizer().tokenize(text) != words
    assert BasicTokenizer(False, False).tokenize(text) == BasicTokenizer(False).tokenize(text) != words
    with pytest.raises(UserError, match="strip_accents is true, but do_lower_case is false: BERT's rules delete"):
        BasicTokenizer(False, True)


def test_words_of_over_200_characters_are_unknown():
    tokenizer = WordpieceTokenizer({"a": 0, "##a": 1})
    assert len(tokenizer.tokenize("a" * 200)) == 200
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"]


def test_word_with_an_unknown_end_is_unknown_as_a_whole():
    assert WordpieceTokenizer({"cat": 0, "##s": 1}).tokenize("cats cat1 cat") == ["cat", "##s", "[UNK]", "cat"]


def test_special_tokens_in_text_are_text_unless_asked_for(vocab_file: str):
    tokenizer = FullTokenizer(vocab_file)
    assert "[MASK]" not in tokenizer.tokenize("the [MASK] sat")
    assert tokenizer.tokenize("the [MASK] sat", special_tokens=True) == ["the", "[MASK]", "sat"]


def test_ids_and_tokens_convert_both_ways(vocab_file: str):
    tokenizer = FullTokenizer(vocab_file)
    tokens = tokenizer.tokenize("the cats ran.")
    assert tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(tokens)) == tokens
    assert "token 'elephant' is not in the vocabulary" in refusal(tokenizer.convert_tokens_to_ids, ["elephant"])
    assert "id 5000 is not in the vocabulary" in refusal(tokenizer.convert_ids_to_tokens, [5000])


def test_bytes_that_are_not_utf8_are_dropped_as_in_the_original():
    assert BasicTokenizer().tokenize(b"caf\xc3\xa9 \xff ol\xe9") == ["cafe", "ol"]
    assert "received int; expected text" in refusal(BasicTokenizer().tokenize, 5)


def test_offsets_point_at_the_source(vocab_file: str):
    tokenizer = FullTokenizer(vocab_file)
    text = "  The CA\u0301T,\u00ad unaffable\u4e2d mats"
    found = [(piece.token, text[piece.start : piece.end]) for piece in tokenizer.tokenize_with_offsets(text)]
    tokens = ["the", "cat", ",", "un", "##aff", "##able", "[UNK]", "mat", "##s"]
    sources = ["The", "CA\u0301T", ",", "un", "aff", "able", "\u4e2d", "mat", "s"]
    assert found == list(zip(tokens, sources, strict=True))


def test_accent_at_the_end_of_a_word_belongs_to_its_piece(vocab_file: str):
    (piece,) = FullTokenizer(vocab_file).tokenize_with_offsets("e\u0301")
    assert (piece.token, piece.start, piece.end) == ("e", 0, 2)


@pytest.mark.parametrize(("name", "casing"), REAL_VOCABULARIES)
def test_real_text_is_cut_alike_with_and_without_offsets(name: str, casing: Casing, test_data: pathlib.Path):
    tokenizer = FullTokenizer(str(test_data / "vocab" / name), *casing)
    for path in sorted((test_data / "text").glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines()[:100]:
            pieces = tokenizer.tokenize(line)
            words = step_by_step(line, casing)
            assert pieces == [piece for word in words for piece in tokenizer.wordpiece_tokenizer.tokenize(word)]
            traced = tokenizer.tokenize_with_offsets(line)
            assert [piece.token for piece in traced] == pieces
            if not casing.do_lower_case:
                for piece in traced:
                    if piece.token != "[UNK]":
                        # Characters of the source between a piece's letters were deleted: joiners and soft hyphens.
                        source = line[piece.start : piece.end]
                        kept = "".join(letter for letter in source if unicodedata.category(letter) != "Cf")
                        assert kept.startswith(piece.token.removeprefix("##"))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_released_vocabularies_give_back_their_own_pieces(name: str, test_data: pathlib.Path):
    vocab = load_vocab(str(test_data / "vocab" / name))
    assert list(vocab.values()) == list(range(len(vocab)))
    tokenizer = WordpieceTokenizer(vocab)
    for token in vocab:
        if not token.startswith("##") and token.split() == [token]:
            assert tokenizer.tokenize(token) == [token]


def test_vocabulary_without_special_tokens_is_refused(tmp_path: pathlib.Path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\nthe\n")
    assert "has 3 tokens, but lacks [CLS], [SEP], [MASK]" in refusal(FullTokenizer, str(path))
    path.write_text("the\n[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n")
    assert "has [PAD] on line 3; it must be on line 1" in refusal(FullTokenizer, str(path))
    assert "there is no file" in refusal(FullTokenizer, str(tmp_path / "none.txt"))
    assert "If 'bert/vocab.txt' is a path" in refusal(FullTokenizer.from_vocab, "bert/vocab.txt")


def test_vocabulary_may_be_text_or_a_mapping(vocab_file: str):
    text = pathlib.Path(vocab_file).read_text(encoding="utf-8")
    expected = FullTokenizer(vocab_file, do_lower_case=False)
    for vocab in (text, parse_vocab(text)):
        tokenizer = FullTokenizer.from_vocab(vocab, do_lower_case=False)
        assert tokenizer.vocab == expected.vocab
        assert tokenizer.tokenize("The playing cat") == expected.tokenize("The playing cat")
    with pytest.raises(UserError, match=r"the vocabulary of x has 1 tokens, but lacks \[PAD\]"):
        FullTokenizer.from_vocab("the\n", source="the vocabulary of x")


def test_vocabulary_lines_are_stripped_and_the_last_of_equal_ones_counts(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "vocab.txt", "a \n b\r\na\nc")
    assert load_vocab(path) == {"a": 2, "b": 1, "c": 3}
    assert list(load_vocab(path)) == ["a", "b", "c"]
