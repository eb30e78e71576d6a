import pathlib

import pytest

from data_gen import learn_vocabulary, python_docs
from official_bert.errors import UserError
from official_bert.tokenization import SPECIAL_TOKENS, FullTokenizer

TEXT = "The cats sat on the mats. Dogs walk, and cats walked! The unaffable dog walks on; Été été.\n" * 5


def learn(tmp_path: pathlib.Path, text: str = TEXT, **changes: object) -> list[str]:
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    values = {"input_file": [str(path)], "vocab_file": str(tmp_path / "vocab.txt"), "vocab_size": 60, **changes}
    return learn_vocabulary.learn(learn_vocabulary.Options(**values))  # type: ignore[arg-type]


def test_special_tokens_come_first_and_every_letter_is_in(tmp_path: pathlib.Path):
    pieces = learn(tmp_path)
    assert pieces[:5] == list(SPECIAL_TOKENS)
    assert len(pieces) == len(set(pieces)) == 60
    assert set("tcsomdwaue,.!;") <= set(pieces)


def test_same_text_gives_the_same_vocabulary(tmp_path: pathlib.Path):
    assert all(learn(tmp_path) == learn(tmp_path) for _ in range(5))


def test_learned_text_has_no_unknown_word(tmp_path: pathlib.Path):
    for do_lower_case in (True, False):
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join(learn(tmp_path, do_lower_case=do_lower_case)) + "\n", encoding="utf-8")
        pieces = FullTokenizer(str(path), do_lower_case).tokenize(TEXT)
        assert "[UNK]" not in pieces
        assert ("The" in pieces) != do_lower_case


def test_real_text_gives_the_same_vocabulary_each_time(test_data: pathlib.Path, tmp_path: pathlib.Path):
    text = (test_data / "text" / "de_xquad.txt").read_text(encoding="utf-8")
    first, second = (learn(tmp_path, text, vocab_size=4000) for _ in range(2))
    assert first == second
    assert len(first) == 4000


def test_too_little_text_gives_fewer_pieces_and_none_is_an_error(tmp_path: pathlib.Path):
    assert len(learn(tmp_path, vocab_size=5000)) < 200
    with pytest.raises(UserError, match="the input holds no text"):
        learn(tmp_path, text=" \n\n")


def test_vocabulary_smaller_than_its_letters_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="--vocab_size is 10, but the special tokens and the letters"):
        learn(tmp_path, vocab_size=10)


def test_prose_is_kept_and_code_is_not():
    text = (
        "Return the *number* of items in a ``list``. It is never negative; see below for more.\n\n"
        "   >>> len(x)\n   3\n\n"
        "name = value\n\n"
        "+---+---+\n| a | b |\n+---+---+\n\n"
        "Arguments: x -- y, z1 = [2, 3], 4 * 5.\n"
    )
    assert list(python_docs.sentences(text)) == [
        "Return the number of items in a list.",
        "It is never negative; see below for more.",
    ]


def test_every_python_carries_a_megabyte_of_prose():
    kept, heldout = python_docs.gather()
    text = [sentence for document in kept for sentence in document]
    assert sum(map(len, text)) > 1_000_000
    assert len(kept) > 200
    assert 5 < len(heldout) < len(kept) / 5
    assert not set(text) & {sentence for document in heldout for sentence in document}
    assert len(text) == len(set(text))
