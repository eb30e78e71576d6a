"""Learning a vocabulary from text, counting words with limited memory, and measuring vocabularies."""

import collections
import pathlib

import pytest

from data_gen.options import VocabularyOptions
from data_gen.vocabulary import learning, report, word_counts, wordpiece_training
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.tokenization import exact
from official_bert.tokenization.casing import UNCASED, make_casing
from tests.make import assert_rejected, run_python, write_text, write_vocab

TEXT = "The cats sat on the mats. Dogs walk, and cats walked! The unaffable dog walks on; Été été.\n" * 5


def learn(tmp_path: pathlib.Path, text: str = TEXT, **changes: object) -> learning.Learned:
    path = write_text(tmp_path / "text.txt", text)
    values = {"input_file": [path], "vocab_file": "vocab.txt", "vocab_size": 60, **changes}
    return learning.learn(VocabularyOptions(**values))


def test_special_tokens_come_first_and_the_text_has_no_unknown_word(tmp_path):
    for casing, letters in ((UNCASED, "t"), (make_casing(False), "TtéÉ"), (make_casing(True, False), "té")):
        pieces = learn(tmp_path, do_lower_case=casing.do_lower_case, strip_accents=casing.strip_accents).pieces
        assert pieces[:5] == list(exact.SPECIAL_TOKENS)
        assert len(pieces) == len(set(pieces)) == 60
        assert set("tTéÉ") & set(pieces) == set(letters)
        assert exact.UNK not in exact.FullTokenizer.from_vocab("\n".join(pieces), **casing._asdict()).tokenize(TEXT)


def test_the_command_writes_the_same_bytes_in_every_process(test_data, tmp_path):
    # Words are also split in half, and the trainer runs with one or several threads.
    command = "-m official_bert_cli learn-vocabulary --vocab_size=4000 --max_words=9000".split()
    for flag, file in {"input_file": "de", "heldout_file": "tr"}.items():
        command.append(f"--{flag}={test_data / 'text' / file}_xquad.txt")
    command.append(f"--compare_with={test_data / 'vocab' / 'bert-base-uncased-vocab.txt'}")
    outputs = []
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        done = run_python(*command, f"--vocab_file={tmp_path / seed}.txt", environment=environment, check=True)
        outputs.append(done.stdout.replace(f"/{seed}.txt", "/vocab.txt"))
    assert outputs[0] == outputs[1]
    assert "/vocab.txt: 4,000 pieces\nlearned from one sentence in 2 of 48 documents" in outputs[0]
    assert "tr_xquad.txt; lower case): " in outputs[0]
    assert "bert-base-uncased-vocab.txt" in outputs[0].splitlines()[-1]
    vocab = (tmp_path / "1.txt").read_bytes()
    assert vocab == (tmp_path / "2.txt").read_bytes()
    assert vocab.count(b"\n") == 4000


def test_the_report_has_the_share_of_counted_sentences_and_of_whole_and_unknown_words():
    counts = WordCounts(UNCASED, 10)
    counts.add(["The cat the"])
    counts.halvings = 3
    assert learning._describe_counts(counts) == "one sentence in 8 of 1 document, 3 words, 2 different"
    table = report.format_table({"name": report.Figures(1000, 1.5, 0.25, 0.125, 0.5)})
    assert table.splitlines()[1].split() == ["name", "1,000", "1.500", "25.00", "%", "12.500", "%"]


def test_a_piece_must_be_frequent_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(wordpiece_training, "_WORDS_AT_ONCE", 2)
    text = "aba aba aba cdc cdc\n"
    assert "cdc" in learn(tmp_path, text, min_frequency=2).pieces
    assert {"aba", "cdc"} & {*learn(tmp_path, text, min_frequency=3).pieces} == {"aba"}
    assert "aba" not in learn(tmp_path, text, min_frequency=4).pieces
    assert len(learn(tmp_path, vocab_size=5000).pieces) < 200
    assert len(learn(tmp_path, vocab_size=39).pieces) == 39  # special tokens and letters only
    assert "a" in learn(tmp_path, "a" * 200).pieces


@pytest.mark.parametrize(("changes", "names"), [
    ({"vocab_size": 38}, ("--vocab_size", 38, 5, 34, 39)),
    ({"vocab_size": 500, "layout": "release"}, ("--vocab_size", 500, 999, 994, "--layout=release", "1,033")),
    ({"vocab_size": 50, "layout": "release", "do_lower_case": False}, (50, 106, 101, "--layout=release")),
    ({"heldout_file": ["no-such-file"]}, ("--heldout_file", "no-such-file")),
    ({"text": " \n\n"}, ("--input_file", "text")),
    ({"text": "a" * 300}, ("--input_file", 1, 200)),
])  # fmt: skip
def test_text_and_settings_that_yield_no_vocabulary_are_rejected(changes, names, tmp_path):
    assert_rejected(names, learn, tmp_path, **changes)


def test_inputs_are_never_overwritten(tmp_path):
    text, other = str(tmp_path / "text.txt"), write_text(tmp_path / "other.txt", TEXT)
    for path, changes in ((text, {}), (other, {"heldout_file": [other]}), (other, {"compare_with": other})):
        assert_rejected(("--vocab_file", path, "input"), learn, tmp_path, vocab_file=path, **changes)


def test_only_an_equal_vocabulary_is_replaced(tmp_path, capsys):
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
    large, bad = str(tmp_path / "large.txt"), write_vocab(tmp_path / "bad.txt", ["a"])
    assert_rejected((bad, "[UNK]"), learning.learn_and_report, VocabularyOptions([text], large, compare_with=bad))
    assert "--vocab_size" not in capsys.readouterr().out
    heldout = write_text(tmp_path / "heldout.txt", "Cats sat\n")
    cased = {"vocab_size": 5000, "do_lower_case": False, "character_coverage": 0.9, "heldout_file": [heldout]}
    learning.learn_and_report(VocabularyOptions([text], large, **cased))
    shown = capsys.readouterr().out
    for part in ("--vocab_size is 5,000", "piece: 18 of 25", f"({heldout}; as written): 1 document, 2 words"):
        assert part in shown
    assert_rejected("/proc/none", learning.learn_and_report, VocabularyOptions(["missing"], "/proc/none/vocab.txt"))


def test_words_with_rare_letters_are_unknown(tmp_path):
    text = "ab ba " * 100 + "abø\n"
    assert {"ø", "##ø"} & {*learn(tmp_path, text).pieces}
    for end in ("", "y" * 201 + "\n"):  # the second is too long for a word
        learned = learn(tmp_path, text + end, character_coverage=0.99)
        assert (learned.letters, learned.covered, learned.coverage) == (3, 2, 402 / 403)
    assert not {"ø", "##ø"} & {*learned.pieces}


def test_every_fiftieth_document_is_held_out(tmp_path):
    documents = ["ab ba\n"] * 49 + ["xy xy\n"] + ["ab\n"] * 49 + ["ab ab ab abba abba abba abba\n"]
    learned = learn(tmp_path, "\n".join(documents))
    assert learned.text.counts == {"ab": 98, "ba": 49}
    assert learned.heldout.counts == {"xy": 2, "ab": 3, "abba": 4}
    figures = report.measure(dict.fromkeys(learned.pieces, 0), learned.heldout.counts)
    assert figures == report.Figures(len(learned.pieces), 17 / 9, 3 / 9, 2 / 9, 4 / 9)  # [UNK], ab, ab ##b ##a
    assert not learn(tmp_path, "\n".join(documents[:49])).heldout.counts


def test_with_a_heldout_file_all_text_is_learned_from(tmp_path):
    heldout = write_text(tmp_path / "heldout.txt", "ba\n")
    learned = learn(tmp_path, "ab\n\n" * 50, heldout_file=[heldout])
    assert (learned.text.counts, learned.heldout.counts) == ({"ab": 50}, {"ba": 1})
    write_text(tmp_path / "heldout.txt", "\n")
    assert_rejected((f"--heldout_file={heldout}", "text"), learn, tmp_path, heldout_file=[heldout])
    names = (tmp_path / "text.txt", "--input_file", "--heldout_file")
    assert_rejected(names, learn, tmp_path, heldout_file=[str(tmp_path / "*.txt")])


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_release_layout_equals_the_released_vocabularies(casing, test_data):
    released = list(exact.load_vocab(str(test_data / "vocab" / f"bert-base-{casing}-vocab.txt")))
    pieces = wordpiece_training.list_special_pieces("release", do_lower_case=casing == "uncased")
    assert released[: len(pieces)] == pieces
    assert not any(piece.startswith("[unused") for piece in released[len(pieces) :])


def test_coverage_takes_the_fewest_letters_that_reach_it():
    counts = collections.Counter({"a": 50, "c": 20, "b": 20, "d": 9, "e": 1})
    letters = [wordpiece_training.select_common_letters(counts, coverage) for coverage in (0.5, 0.51, 0.99, 1.0)]
    assert letters == [set("a"), set("ab"), set("abcd"), set("abcde")]


def test_words_are_counted_exactly_below_the_limit():
    counts = WordCounts(UNCASED, max_words=7)  # exactly as many as there are
    for document in (["Été, été!", "ΟΔΟΣ"], ["a\u302e"], ["x" * 200, "y" * 300]):
        counts.add(document)
    words = ["ete", "ete", ",", "!", "οδος", "a\u302e", "x" * 200, "y" * 201]
    assert counts.counts == {word: words.count(word) for word in words}
    assert (counts.documents, counts.halvings) == (3, 0)


def test_above_the_limit_an_even_sample_is_counted():
    samples = [WordCounts(UNCASED, max_words=3000) for _ in range(2)]
    for sample in samples:
        for number in range(40_000):
            sample.add([f"often w{number % 20} once{number}", f"early{number < 20_000}"])
    counts, share = samples[0].counts, 2 ** samples[0].halvings
    assert counts == samples[1].counts
    assert 1000 < len(counts) <= 3000
    assert 8 <= share <= 32
    starts = {"often": 40_000, "w": 40_000, "once": 40_000, "earlytrue": 20_000, "earlyfalse": 20_000}
    found = {start: share * sum(counts[word] for word in counts if word.startswith(start)) for start in starts}
    assert found == pytest.approx(starts, rel=0.1)


def test_much_text_of_few_words_is_sampled_too(monkeypatch):
    monkeypatch.setattr(word_counts, "_MAX_OCCURRENCES", 100_000)
    counts = WordCounts(UNCASED, max_words=10)
    for _ in range(1000):
        counts.add(["a b c"] * 1000)
    assert 50_000 <= sum(counts.counts.values()) <= 100_000
    assert sum(counts.counts.values()) * 2**counts.halvings == pytest.approx(3_000_000, rel=0.02)
