"""Learning a vocabulary from text."""

import bz2
import gzip
import json
import os
import pathlib
import subprocess
import sys

import pytest
import tokenizers
import zstandard

from data_gen.options import VocabularyOptions
from data_gen.vocabulary import learning, report
from official_bert.tokenization.exact import (
    SPECIAL_TOKENS,
    UNK,
    BasicTokenizer,
    FullTokenizer,
    WordpieceTokenizer,
    load_vocab,
)
from tests.conftest import ROOT
from tests.make import assert_refused, refusal, write_text, write_vocab

TEXT = "The cats sat on the mats. Dogs walk, and cats walked! The unaffable dog walks on; Été été.\n" * 5


def options(input_file: pathlib.Path | str, **changes: object) -> VocabularyOptions:
    values = {"input_file": [str(input_file)], "vocab_file": "vocab.txt", "vocab_size": 60, **changes}
    return VocabularyOptions(**values)  # type: ignore[arg-type]


def learn(tmp_path: pathlib.Path, text: str = TEXT, **changes: object) -> list[str]:
    return learning.learn(options(write_text(tmp_path / "text.txt", text), **changes)).pieces


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


def test_same_text_gives_the_same_vocabulary(tmp_path: pathlib.Path):
    assert all(learn(tmp_path) == learn(tmp_path) for _ in range(5))


def test_learned_text_has_no_unknown_word(tmp_path: pathlib.Path):
    for do_lower_case in (True, False):
        path = write_vocab(tmp_path / "vocab.txt", learn(tmp_path, do_lower_case=do_lower_case))
        pieces = FullTokenizer(path, do_lower_case).tokenize(TEXT)
        assert "[UNK]" not in pieces
        assert ("The" in pieces) != do_lower_case


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("name", ["de_xquad", "zh_xquad", "hi_xquad"])
def test_exact_tokenizer_splits_words_like_the_trainers_model(
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
    # Read back like a user's file.
    assert load_vocab(write_vocab(tmp_path / "vocab.txt", pieces)) == vocab


def test_the_command_writes_the_same_bytes_in_every_process(test_data: pathlib.Path, tmp_path: pathlib.Path):
    # Words are also split in half, and the trainer runs with one or several threads.
    text, running = test_data / "text", []
    for seed in ("1", "2"):
        flags = {"vocab_size": 4000, "max_words": 9000, "vocab_file": tmp_path / f"{seed}.txt"}
        flags |= {"input_file": text / "de_xquad.txt", "heldout_file": text / "tr_xquad.txt"}
        flags["compare_with"] = test_data / "vocab" / "bert-base-uncased-vocab.txt"
        command = [sys.executable, "-m", "official_bert_cli", "learn-vocabulary"]
        command += [f"--{name}={value}" for name, value in flags.items()]
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
        path = write_text(tmp_path / "text", content)
        assert learning.learn(options(path, input_format=format)).pieces == expected, format


def test_little_text_gives_fewer_pieces_and_empty_text_is_an_error(tmp_path: pathlib.Path):
    assert len(learn(tmp_path, vocab_size=5000)) < 200
    assert "the input contains no text" in refusal(learn, tmp_path, text=" \n\n")


def test_a_piece_must_be_frequent_enough(tmp_path: pathlib.Path):
    text = "aba aba aba cdc cdc\n"
    assert "cdc" in learn(tmp_path, text, min_frequency=2)
    pieces = learn(tmp_path, text, min_frequency=3)
    assert "aba" in pieces
    assert "cdc" not in pieces


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 10}, "--vocab_size is 10, .*tokens .5. and .* .27. need 32"),
        ({"vocab_size": 500, "layout": "release"}, "--vocab_size is 500, .*tokens .999. and .* .27. need 1,026"),
        ({"heldout_file": ["no-such-file"]}, "--heldout_file: no file matches 'no-such-file'"),
    ],
)
def test_flags_out_of_range_are_refused(changes: dict[str, object], message: str, tmp_path: pathlib.Path):
    assert_refused(message, learn, tmp_path, **changes)


def test_inputs_are_never_overwritten(tmp_path: pathlib.Path):
    text, other, link = (tmp_path / name for name in ("text.txt", "other.txt", "link.txt"))
    other.write_text(TEXT)
    link.symlink_to(other)
    for changes in (
        {"vocab_file": str(tmp_path / "." / "text.txt")},
        {"vocab_file": str(other), "heldout_file": [str(other)]},
        {"vocab_file": str(link), "compare_with": str(other)},
    ):
        assert_refused("--vocab_file would write .*, which is an input", learn, tmp_path, **changes)
    assert text.read_text() == other.read_text() == TEXT


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
    assert figures == report.Figures(len(learned.pieces), 5 / 3, 1 / 3, 1 / 3, 1 / 3)  # [UNK], ab, ab ##b ##a
    path.write_text("\n".join(documents[:49]))
    assert not learning.learn(options(path)).heldout.counts


def test_with_a_heldout_file_all_text_is_learned_from(tmp_path: pathlib.Path):
    text, heldout = tmp_path / "text.txt", tmp_path / "heldout.txt"
    text.write_text("ab\n\n" * 50)
    heldout.write_text("ba\n")
    learned = learning.learn(options(text, heldout_file=[str(heldout)]))
    assert learned.text.counts == {"ab": 50}
    assert learned.heldout.counts == {"ba": 1}
    both = options(text, heldout_file=[str(tmp_path / "*.txt")])
    assert "is in both --input_file and --heldout_file" in refusal(learning.learn, both)
    heldout.write_text("\n")
    assert "heldout.txt contains no text" in refusal(learning.learn, options(text, heldout_file=[str(heldout)]))


def test_letters_keep_their_accents_on_request(tmp_path: pathlib.Path):
    assert not set("éÉ") & set(learn(tmp_path))
    assert "é" in learn(tmp_path, strip_accents=False)
    assert "É" not in learn(tmp_path, strip_accents=False)
