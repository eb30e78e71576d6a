import bz2
import collections
import gzip
import json
import os
import pathlib
import subprocess
import sys

import pytest
import tokenizers
import zstandard

from data_gen.options import ProseOptions, VocabularyOptions
from data_gen.text import python_prose
from data_gen.vocabulary import learning, report, word_counts
from data_gen.vocabulary.word_counts import WordCounts
from data_gen.vocabulary.wordpiece_training import commonest, special_pieces
from official_bert.errors import UserError
from official_bert.tokenization.exact import (
    SPECIAL_TOKENS,
    UNK,
    BasicTokenizer,
    FullTokenizer,
    WordpieceTokenizer,
    load_vocab,
)
from tests.conftest import ROOT
from tests.tokenization.test_exact import VOCABULARIES

TEXT = "The cats sat on the mats. Dogs walk, and cats walked! The unaffable dog walks on; Été été.\n" * 5


def options(input_file: pathlib.Path, **changes: object) -> VocabularyOptions:
    values = {"input_file": [str(input_file)], "vocab_file": "vocab.txt", "vocab_size": 60, **changes}
    return VocabularyOptions(**values)  # type: ignore[arg-type]


def learn(tmp_path: pathlib.Path, text: str = TEXT, **changes: object) -> list[str]:
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    return learning.learn(options(path, **changes)).pieces


def test_special_tokens_come_first_and_every_letter_is_in(tmp_path: pathlib.Path):
    pieces = learn(tmp_path)
    assert pieces[:5] == list(SPECIAL_TOKENS)
    assert len(pieces) == len(set(pieces)) == 60
    assert set("tcsomdwaue,.!;") <= set(pieces)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_release_layout_has_special_tokens_where_google_has_them(do_lower_case: bool, tmp_path: pathlib.Path):
    pieces = learn(tmp_path, layout="release", do_lower_case=do_lower_case, vocab_size=1100)
    compact = learn(tmp_path, do_lower_case=do_lower_case, vocab_size=1100)
    ids = {piece: index for index, piece in enumerate(pieces)}
    assert [ids[token] for token in SPECIAL_TOKENS] == [0, 100, 101, 102, 103]
    unused = [piece for piece in pieces if piece.startswith("[unused")]
    assert len(unused) == (994 if do_lower_case else 101)
    assert [piece for piece in pieces if piece not in {*unused, *SPECIAL_TOKENS}] == compact[5:]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_release_layout_is_that_of_every_released_vocabulary(name: str, test_data: pathlib.Path):
    released = load_vocab(str(test_data / "vocab" / name))
    for do_lower_case in (True, False):
        ours = {piece: index for index, piece in enumerate(special_pieces("release", do_lower_case))}
        assert all(ours[token] == released[token] for token in SPECIAL_TOKENS)
    if name.startswith(("bert-base-uncased", "bert-base-cased")):
        ours_in_order = special_pieces("release", do_lower_case="uncased" in name)
        assert list(released)[: len(ours_in_order)] == ours_in_order
        assert not any(piece.startswith("[unused") for piece in list(released)[len(ours_in_order) :])


def test_same_text_gives_the_same_vocabulary(tmp_path: pathlib.Path):
    assert all(learn(tmp_path) == learn(tmp_path) for _ in range(5))


def test_learned_text_has_no_unknown_word(tmp_path: pathlib.Path):
    for do_lower_case in (True, False):
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join(learn(tmp_path, do_lower_case=do_lower_case)) + "\n", encoding="utf-8")
        pieces = FullTokenizer(str(path), do_lower_case).tokenize(TEXT)
        assert "[UNK]" not in pieces
        assert ("The" in pieces) != do_lower_case


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("name", ["de_xquad", "zh_xquad", "hi_xquad"])
def test_our_tokenizer_cuts_words_as_the_trainers_own_model_does(
    name: str, do_lower_case: bool, test_data: pathlib.Path, tmp_path: pathlib.Path
):
    text = (test_data / "text" / f"{name}.txt").read_text(encoding="utf-8")
    pieces = learn(tmp_path, text, vocab_size=3000, do_lower_case=do_lower_case, character_coverage=0.999)
    vocab = {piece: index for index, piece in enumerate(pieces)}
    theirs = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=vocab, unk_token=UNK, max_input_chars_per_word=200))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    ours = WordpieceTokenizer(vocab)
    words = sorted(set(BasicTokenizer(do_lower_case).tokenize(text)))
    assert len(words) > 2000
    cut = [ours.pieces(word) for word in words]
    assert cut == [theirs.encode(word).tokens for word in words]
    assert 0 < sum(parts == [UNK] for parts in cut) < len(words) / 10
    # As a user's file, read again.
    path = tmp_path / "vocab.txt"
    path.write_text("".join(piece + "\n" for piece in pieces), encoding="utf-8")
    assert load_vocab(str(path)) == vocab


def test_the_command_writes_the_same_bytes_in_every_process(test_data: pathlib.Path, tmp_path: pathlib.Path):
    # Words are halved too, and the trainer has one thread or several.
    running = []
    for seed in ("1", "2"):
        command = [
            sys.executable,
            "-m",
            "official_bert_cli",
            "learn-vocabulary",
            "--vocab_size=4000",
            "--max_words=9000",
        ]
        command += [f"--input_file={test_data}/text/de_xquad.txt", f"--vocab_file={tmp_path}/{seed}.txt"]
        command += [
            f"--heldout_file={test_data}/text/tr_xquad.txt",
            f"--compare_with={test_data}/vocab/bert-base-uncased-vocab.txt",
        ]
        environment = os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    first, second = ((tmp_path / f"{seed}.txt").read_bytes() for seed in ("1", "2"))
    assert first == second
    assert first.count(b"\n") == 4000
    assert outputs[0].replace("/1.txt", "/2.txt") == outputs[1]
    assert "1.txt: 4,000 pieces\nlearned from one sentence in 2 of 48 documents" in outputs[0]
    assert "bert-base-uncased-vocab.txt" in outputs[0].splitlines()[-1]


def test_every_format_and_compression_gives_the_same_vocabulary(tmp_path: pathlib.Path):
    documents = [["Cats sat on mats.", "Dogs walk on."], ["The unaffable cat walked."], ["Dogs sat, cats walk!"]]
    sentences = "\n\n".join("\n".join(document) for document in documents).encode()
    paragraphs = "\n\n".join(" ".join(document) for document in documents).encode()
    wiki = "".join(f'<doc id="1" title="No">\nNo\n\n{" ".join(document)}\n</doc>\n' for document in documents).encode()
    lines = "".join(json.dumps({"text": " ".join(document)}) + "\n" for document in documents).encode()
    expected = learn(tmp_path, sentences.decode())
    assert len(expected) > 40
    for content, format in (
        (gzip.compress(sentences), "sentences"),
        (bz2.compress(paragraphs), "paragraphs"),
        (zstandard.compress(wiki), "auto"),
        (lines, "auto"),
    ):
        path = tmp_path / "text"
        path.write_bytes(content)
        assert learning.learn(options(path, input_format=format)).pieces == expected, format


def test_too_little_text_gives_fewer_pieces_and_none_is_an_error(tmp_path: pathlib.Path):
    assert len(learn(tmp_path, vocab_size=5000)) < 200
    with pytest.raises(UserError, match="the input holds no text"):
        learn(tmp_path, text=" \n\n")


def test_a_piece_must_be_frequent_enough(tmp_path: pathlib.Path):
    text = "aba aba aba cdc cdc\n"
    assert "cdc" in learn(tmp_path, text, min_frequency=2)
    pieces = learn(tmp_path, text, min_frequency=3)
    assert "aba" in pieces
    assert "cdc" not in pieces


def test_vocabulary_smaller_than_its_letters_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="--vocab_size is 10, but the special tokens and the letters.*: 5 and 27; give"):
        learn(tmp_path, vocab_size=10)
    with pytest.raises(UserError, match="--vocab_size is 500, .*: 999 and 27; give"):
        learn(tmp_path, vocab_size=500, layout="release")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "--vocab_size is 0; expected at least 1"),
        ({"min_frequency": 0}, "--min_frequency is 0; expected at least 1"),
        ({"character_coverage": 0.0}, "--character_coverage is 0.0; expected a share"),
        ({"character_coverage": 99.5}, "--character_coverage is 99.5; expected a share"),
        ({"max_words": 59}, "--max_words is 59, but --vocab_size is 60"),
        ({"heldout_file": ["no-such-file"]}, "--heldout_file: no file matches 'no-such-file'"),
    ],
)
def test_flags_out_of_range_are_refused(changes: dict[str, object], message: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=message):
        learn(tmp_path, **changes)


def test_what_is_read_is_never_overwritten(tmp_path: pathlib.Path):
    text, other, link = (tmp_path / name for name in ("text.txt", "other.txt", "link.txt"))
    other.write_text(TEXT)
    link.symlink_to(other)
    for changes in (
        {"vocab_file": str(tmp_path / "." / "text.txt")},
        {"vocab_file": str(other), "heldout_file": [str(other)]},
        {"vocab_file": str(link), "compare_with": str(other)},
    ):
        with pytest.raises(
            UserError, match="--vocab_file would write .*, which is an input.*; writing would destroy it"
        ):
            learn(tmp_path, **changes)
    assert text.read_text() == other.read_text() == TEXT


def test_coverage_takes_the_fewest_letters_that_reach_it():
    frequencies = collections.Counter({"a": 50, "c": 20, "b": 20, "d": 9, "e": 1})
    assert commonest(frequencies, 0.5) == {"a"}
    assert commonest(frequencies, 0.51) == {"a", "b"}
    assert commonest(frequencies, 0.99) == {"a", "b", "c", "d"}
    assert commonest(frequencies, 1.0) == set("abcde")


def test_words_with_rare_letters_are_unknown(tmp_path: pathlib.Path):
    text = "ab ba " * 100 + "abø\n"
    assert {"ø", "##ø"} & set(learn(tmp_path, text))
    path = tmp_path / "text.txt"
    learned = learning.learn(options(path, character_coverage=0.99))
    assert not {"ø", "##ø"} & set(learned.pieces)
    assert (learned.letters, learned.covered, learned.coverage) == (3, 2, 402 / 403)
    assert WordpieceTokenizer(dict.fromkeys(learned.pieces, 0)).pieces("abø") == [UNK]


def test_every_fiftieth_document_is_held_out(tmp_path: pathlib.Path):
    documents = ["ab ba\n"] * 49 + ["xy\n"] + ["ab\n"] * 49 + ["ab abba\n"]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(documents))
    learned = learning.learn(options(path))
    assert learned.text.counts == {"ab": 98, "ba": 49}
    assert learned.heldout.counts == {"xy": 1, "ab": 1, "abba": 1}
    figures = report.measure(dict.fromkeys(learned.pieces, 0), learned.heldout.counts)
    assert "ab" in learned.pieces
    assert figures == report.Figures(len(learned.pieces), 5 / 3, 1 / 3, 1 / 3)  # [UNK], ab, ab ##b ##a
    path.write_text("\n".join(documents[:49]))
    assert not learning.learn(options(path)).heldout.counts


def test_a_heldout_file_leaves_all_text_to_learn_from(tmp_path: pathlib.Path):
    text, heldout = tmp_path / "text.txt", tmp_path / "heldout.txt"
    text.write_text("ab\n\n" * 50)
    heldout.write_text("ba\n")
    learned = learning.learn(options(text, heldout_file=[str(heldout)]))
    assert learned.text.counts == {"ab": 50}
    assert learned.heldout.counts == {"ba": 1}
    with pytest.raises(UserError, match="which --input_file names too"):
        learning.learn(options(text, heldout_file=[str(tmp_path / "*.txt")]))
    heldout.write_text("\n")
    with pytest.raises(UserError, match="heldout.txt holds no text"):
        learning.learn(options(text, heldout_file=[str(heldout)]))


@pytest.mark.parametrize("name", ["bert-base-uncased-vocab.txt", "bert-base-cased-vocab.txt"])
def test_figures_are_those_of_the_full_tokenizer(name: str, test_data: pathlib.Path):
    do_lower_case = "uncased" in name
    tokenizer = FullTokenizer(str(test_data / "vocab" / name), do_lower_case)
    text = (test_data / "text" / "vi_xquad.txt").read_text(encoding="utf-8") + "y" * 201 + "\u4e86" * 300
    counts = WordCounts(do_lower_case, max_words=100_000)
    counts.add(text.splitlines())
    figures = report.measure(tokenizer.vocab, counts.counts)
    words = tokenizer.basic_tokenizer.tokenize(text)
    pieces = tokenizer.tokenize(text)
    assert figures.size == len(tokenizer.vocab)
    assert figures.pieces_per_word == len(pieces) / len(words)
    assert figures.unknown == pieces.count(UNK) / len(words)
    assert figures.whole == sum(tokenizer.tokenize(word) == [word] for word in words) / len(words)
    assert 0 < figures.unknown < figures.whole < 1


def test_words_are_counted_exactly_while_there_is_room():
    counts = WordCounts(do_lower_case=True, max_words=100)
    for document in (["Été, été!", "ΟΔΟΣ"], ["a\u302e"], ["x" * 200, "y" * 300]):
        counts.add(document)
    assert counts.counts == {
        "ete": 2,
        ",": 1,
        "!": 1,
        "οδος": 1,
        "a\u302e": 1,
        "x" * 200: 1,
        "y" * 201: 1,
    }
    assert (counts.documents, counts.halvings) == (3, 0)


def test_words_beyond_the_bound_leave_an_even_sample():
    def sample() -> WordCounts:
        counts = WordCounts(do_lower_case=True, max_words=3000)
        for number in range(40_000):
            counts.add([f"often w{number % 20} once{number}", f"early{number < 20_000}"])
        return counts

    counts = sample()
    assert 1000 < len(counts.counts) <= 3000
    assert counts.halvings in (3, 4, 5)
    share = 2**counts.halvings
    once = sum(count for word, count in counts.counts.items() if word.startswith("once"))
    for measured, true in (
        (counts.counts["often"], 40_000),
        (sum(counts.counts[f"w{number}"] for number in range(20)), 40_000),
        (counts.counts["earlytrue"], 20_000),
        (counts.counts["earlyfalse"], 20_000),
        (once, 40_000),
    ):
        assert measured * share == pytest.approx(true, rel=0.1)
    assert counts.counts == sample().counts


def test_much_text_of_few_words_is_sampled_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(word_counts, "_MOST_OCCURRENCES", 100_000)
    counts = WordCounts(do_lower_case=True, max_words=10)
    for _ in range(1000):
        counts.add(["a b c"] * 1000)
    assert 50_000 <= sum(counts.counts.values()) <= 100_000
    assert sum(counts.counts.values()) * 2**counts.halvings == pytest.approx(3_000_000, rel=0.02)


def test_prose_is_kept_and_code_is_not():
    text = (
        "Return the *number* of items in a ``list``. It is never negative; see below for more.\n\n"
        "   >>> len(x)\n   3\n\n"
        "name = value\n\n"
        "+---+---+\n| a | b |\n+---+---+\n\n"
        "Arguments: x -- y, z1 = [2, 3], 4 * 5.\n"
    )
    assert list(python_prose.sentences(text)) == [
        "Return the number of items in a list.",
        "It is never negative; see below for more.",
    ]


def test_docstrings_of_nested_definitions_are_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "module.py").write_text(
        "'Module.'\n"
        "try:\n    def a():\n        'A.'\n        class B:\n            'B.'\n"
        "except ImportError:\n    async def c():\n        'C.'\n"
        "match 1:\n    case 1:\n        def d():\n            'D.'\n"
        "if 0:\n    pass\nelse:\n    for e in [lambda: 'none']:\n        def e(): 'E.'\n"
    )
    monkeypatch.setattr(os, "__file__", str(tmp_path / "os.py"))
    ((name, text),) = python_prose.docstring_documents()
    assert name == "module.py"
    assert text.split() == ["Module.", "A.", "B.", "C.", "D.", "E."]


def test_the_two_files_of_prose_are_two(tmp_path: pathlib.Path):
    (tmp_path / "link.txt").symlink_to("text.txt")
    options = ProseOptions(output_file=str(tmp_path / "text.txt"), heldout_file=str(tmp_path / "link.txt"))
    with pytest.raises(UserError, match=r"are both .*link.txt; give two names"):
        python_prose.write(options)


def test_every_python_carries_a_megabyte_of_prose():
    kept, heldout = python_prose.gather()
    text = [sentence for document in kept for sentence in document]
    assert sum(map(len, text)) > 1_000_000
    assert len(kept) > 200
    assert 5 < len(heldout) < len(kept) / 5
    assert not set(text) & {sentence for document in heldout for sentence in document}
    assert len(text) == len(set(text))
