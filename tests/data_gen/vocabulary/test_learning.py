"""Learning a vocabulary from text."""

import os
import pathlib
import subprocess
import sys

import pytest
import tokenizers

from data_gen.options import VocabularyOptions
from data_gen.vocabulary import learning, report
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.tokenization import exact
from official_bert.tokenization.casing import UNCASED
from tests.conftest import ROOT
from tests.make import assert_rejected, write_text, write_vocab

TEXT = "The cats sat on the mats. Dogs walk, and cats walked! The unaffable dog walks on; Été été.\n" * 5


def learn(tmp_path: pathlib.Path, text: str = TEXT, **changes: object) -> learning.Learned:
    path = write_text(tmp_path / "text.txt", text)
    values = {"input_file": [path], "vocab_file": "vocab.txt", "vocab_size": 60, **changes}
    return learning.learn(VocabularyOptions(**values))


def test_special_tokens_come_first_and_every_letter_is_included(tmp_path):
    pieces = learn(tmp_path).pieces
    assert pieces[:5] == list(exact.SPECIAL_TOKENS)
    assert len(pieces) == len(set(pieces)) == 60
    assert set("tcsomdwaue,.!;") <= set(pieces)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_learned_text_has_no_unknown_word(do_lower_case, tmp_path):
    vocab = "\n".join(learn(tmp_path, do_lower_case=do_lower_case).pieces) + "\n"
    pieces = exact.FullTokenizer.from_vocab(vocab, do_lower_case=do_lower_case).tokenize(TEXT)
    assert "[UNK]" not in pieces
    assert ("The" in pieces) != do_lower_case


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("name", ["de_xquad", "zh_xquad", "hi_xquad"])
def test_exact_tokenizer_splits_words_like_the_trainers_model(name, do_lower_case, test_data, tmp_path):
    text = (test_data / "text" / f"{name}.txt").read_text(encoding="utf-8")
    pieces = learn(tmp_path, text, vocab_size=3000, do_lower_case=do_lower_case, character_coverage=0.999).pieces
    vocab = exact.load_vocab(write_vocab(tmp_path / "vocab.txt", pieces))
    assert list(vocab) == pieces
    theirs = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocab=vocab, unk_token=exact.UNK, max_input_chars_per_word=200)
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words = sorted(set(exact.BasicTokenizer(do_lower_case).tokenize(text)))
    assert len(words) > 2000
    cut = list(map(exact.WordpieceTokenizer(vocab).pieces, words))
    assert cut == [theirs.encode(word).tokens for word in words]
    assert 0 < sum(parts == [exact.UNK] for parts in cut) < len(words) / 10


def test_the_command_writes_the_same_bytes_in_every_process(test_data, tmp_path):
    # Words are also split in half, and the trainer runs with one or several threads.
    text, running = test_data / "text", []
    for seed in ("1", "2"):
        command = [
            sys.executable, "-m", "official_bert_cli", "learn-vocabulary", f"--vocab_file={tmp_path / seed}.txt",
            f"--input_file={text / 'de_xquad.txt'}", f"--heldout_file={text / 'tr_xquad.txt'}", "--vocab_size=4000",
            f"--compare_with={test_data / 'vocab' / 'bert-base-uncased-vocab.txt'}", "--max_words=9000",
        ]  # fmt: skip
        environment = os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
    first, second = (process.communicate()[0] for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert first.replace("/1.txt", "/2.txt") == second
    assert "1.txt: 4,000 pieces\nlearned from one sentence in 2 of 48 documents" in first
    assert "bert-base-uncased-vocab.txt" in first.splitlines()[-1]
    assert (tmp_path / "1.txt").read_bytes() == (tmp_path / "2.txt").read_bytes()
    assert (tmp_path / "1.txt").read_bytes().count(b"\n") == 4000


def test_the_report_has_the_share_of_the_sentences_that_were_counted():
    counts = WordCounts(UNCASED, 10)
    counts.add(["The cat"])
    counts.halvings = 3
    described = learning._describe_counts(counts)
    assert described == "one sentence in 8 of 1 document, 2 words, 2 different"


def test_a_piece_must_be_frequent_enough(tmp_path):
    text = "aba aba aba cdc cdc\n"
    assert "cdc" in learn(tmp_path, text, min_frequency=2).pieces
    assert {"aba", "cdc"} & {*learn(tmp_path, text, min_frequency=3).pieces} == {"aba"}
    assert len(learn(tmp_path, vocab_size=5000).pieces) < 200


@pytest.mark.parametrize(("changes", "names"), [
    ({"vocab_size": 10}, ("--vocab_size", 10, 5, 27, 32)),
    ({"vocab_size": 500, "layout": "release"}, ("--vocab_size", 500, 999, 994, "--layout=release", "1,026")),
    ({"vocab_size": 50, "layout": "release", "do_lower_case": False}, (50, 106, 101, "--layout=release")),
    ({"heldout_file": ["no-such-file"]}, ("--heldout_file", "no-such-file")),
    ({"text": " \n\n"}, ("--input_file", "text")),
    ({"text": "a" * 300}, ("--input_file", 1, 200)),
])  # fmt: skip
def test_text_and_settings_that_yield_no_vocabulary_are_rejected(changes, names, tmp_path):
    assert_rejected(names, learn, tmp_path, **changes)


def test_inputs_are_never_overwritten(tmp_path):
    other = write_text(tmp_path / "other.txt", TEXT)
    (tmp_path / "link.txt").symlink_to(other)
    for changes in (
        {"vocab_file": str(tmp_path / "." / "text.txt")},
        {"vocab_file": other, "heldout_file": [other]},
        {"vocab_file": str(tmp_path / "link.txt"), "compare_with": other},
    ):
        assert_rejected(("--vocab_file", changes["vocab_file"], "input"), learn, tmp_path, **changes)


def test_only_an_equal_vocabulary_is_replaced(tmp_path):
    text, other = write_text(tmp_path / "text.txt", TEXT), write_text(tmp_path / "mine.txt", "my notes\n")
    flags = [(str(tmp_path / "vocab.txt"), 60), (str(tmp_path / "vocab.txt"), 50), (other, 60)]
    first, *changed = (VocabularyOptions([text], vocab_file=path, vocab_size=size) for path, size in flags)
    for _ in range(2):
        learning.learn_and_report(first)
    for options in [VocabularyOptions([text], first.vocab_file, vocab_size=55), *changed, changed[0]]:
        assert_rejected(f"--vocab_file={options.vocab_file}", learning.learn_and_report, options)
    assert [len(exact.load_vocab(first.vocab_file + end)) for end in ("", ".new", ".new2")] == [60, 55, 50]
    assert not [*tmp_path.glob("*.new3"), *tmp_path.glob("mine.txt.*")]
    assert pathlib.Path(other).read_text() == "my notes\n"


def test_words_with_rare_letters_are_unknown(tmp_path):
    text = "ab ba " * 100 + "abø\n"
    assert {"ø", "##ø"} & {*learn(tmp_path, text).pieces}
    learned = learn(tmp_path, text, character_coverage=0.99)
    assert not {"ø", "##ø"} & {*learned.pieces}
    assert (learned.letters, learned.covered, learned.coverage) == (3, 2, 402 / 403)
    assert exact.WordpieceTokenizer(dict.fromkeys(learned.pieces, 0)).pieces("abø") == [exact.UNK]


def test_every_fiftieth_document_is_held_out(tmp_path):
    documents = ["ab ba\n"] * 49 + ["xy\n"] + ["ab\n"] * 49 + ["ab abba\n"]
    learned = learn(tmp_path, "\n".join(documents))
    assert learned.text.counts == {"ab": 98, "ba": 49}
    assert learned.heldout.counts == {"xy": 1, "ab": 1, "abba": 1}
    figures = report.measure(dict.fromkeys(learned.pieces, 0), learned.heldout.counts)
    assert figures == report.Figures(len(learned.pieces), 5 / 3, 1 / 3, 1 / 3, 1 / 3)  # [UNK], ab, ab ##b ##a
    assert not learn(tmp_path, "\n".join(documents[:49])).heldout.counts


def test_with_a_heldout_file_all_text_is_learned_from(tmp_path):
    heldout = write_text(tmp_path / "heldout.txt", "ba\n")
    learned = learn(tmp_path, "ab\n\n" * 50, heldout_file=[heldout])
    assert (learned.text.counts, learned.heldout.counts) == ({"ab": 50}, {"ba": 1})
    names = (tmp_path / "text.txt", "--input_file", "--heldout_file")
    assert_rejected(names, learn, tmp_path, heldout_file=[str(tmp_path / "*.txt")])
    write_text(tmp_path / "heldout.txt", "\n")
    assert_rejected((f"--heldout_file={heldout}", "text"), learn, tmp_path, heldout_file=[heldout])


def test_letters_keep_their_accents_on_request(tmp_path):
    assert not set("éÉ") & {*learn(tmp_path).pieces}
    assert set("éÉ") & {*learn(tmp_path, strip_accents=False).pieces} == {"é"}
