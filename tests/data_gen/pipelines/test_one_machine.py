"""Making record files from text files with either algorithm, and the printed summary."""

import dataclasses
import pathlib
import random
import re
import shutil
import unittest.mock

import numpy as np
import pytest

from data_gen.pipelines import outputs, run_plan
from data_gen.pipelines.summary import describe
from data_gen.text import formats
from official_bert.data import record_codec
from official_bert.tokenization.exact import SPECIAL_TOKENS
from official_bert.utils import files
from tests.data_gen.inspection.record_samples import check
from tests.data_gen.samples import contents, create_records, make_options, make_records, parse_records, read_manifest
from tests.make import WORDS, assert_mentions, assert_rejected, refusal, write_rows, write_text, write_vocab

BOTH = pytest.mark.parametrize("algorithm", ["fast", "reference"])


@BOTH
@pytest.mark.parametrize("whole_words", [False, True])
def test_records_obey_the_rules(algorithm, whole_words, corpus, tmp_path):
    flags = {"algorithm": algorithm, "num_shards": 1, "dupe_factor": 1, "do_whole_word_mask": whole_words}
    summary = make_records(corpus, tmp_path, **flags)
    found = check(manifest=f"{tmp_path}/out.manifest.json", vocab_file=corpus[1])
    assert (found.problems, found.records) == ([], summary["instances"])
    batch = parse_records(tmp_path)
    assert int(batch["input_mask"].sum()) == summary["tokens"] == summary["maskable"] + 3 * summary["instances"]
    assert batch["input_mask"].size == summary["positions"]
    assert int(batch["masked_lm_weights"].sum()) == summary["predictions"]
    assert int(batch["next_sentence_labels"].sum()) == summary["random_next"]
    count = batch["masked_lm_weights"].sum(axis=1)
    budget = np.clip(np.rint(batch["input_mask"].sum(axis=1) * 0.15), 1, len(batch["masked_lm_weights"][0]))
    assert (count <= budget if whole_words else count == budget).all()


# The values of a flag in two runs, and the names in the messages about unfinished and about finished records.
LISTS = ("--exclude_texts", "--word_boundaries")
TWO_RUNS = [
    ("random_seed", (1, 2), ("--random_seed", 1, 2), (1, 2)),
    ("exclude_texts", (["one"], ["two"]), LISTS, ()),
    ("word_boundaries", ("one", "two"), LISTS, ()),
    ("vocab_file", ("text3.txt", "two.txt"), ["--vocab_file"], ["two.txt"]),
    ("input_file", (["text0.txt"], ["text1.txt"]), LISTS, ("text0.txt is missing", "text1.txt is new")),
]


@pytest.mark.parametrize(("flag", "values", "in_work", "in_manifest"), TWO_RUNS)
def test_records_of_different_runs_are_not_mixed(flag, values, in_work, in_manifest, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        write_text(tmp_path / name, f"{name}-text-of-twenty-characters")
    for number, path in enumerate((*corpus[0], corpus[1])):
        shutil.copy(path, f"text{number}.txt")
    write_vocab(tmp_path / "two.txt")
    flags, out = {"do_whole_word_mask": True}, pathlib.Path("out")
    first, second = (make_options(corpus, out, **flags, **{flag: value}) for value in values)
    with monkeypatch.context() as patch:
        patch.setattr(run_plan, "plan_run", unittest.mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            create_records(first)
    told = refusal(create_records, second)
    assert_mentions(told, "out/out.work", *in_work)
    assert told.count("--") == (2 if in_work == LISTS else 1)
    if flag == "vocab_file":
        both = dataclasses.replace(second, random_seed=7)
        assert_rejected(("--random_seed", 12345, 7, "--vocab_file"), create_records, both)
    create_records(first)
    before = contents(tmp_path / "out")
    told = refusal(create_records, second)
    assert_mentions(told, "out/out.manifest.json", f"--{flag}", *in_manifest)
    assert told.count("--") == 2  # the flag, and --output_file as a remedy
    assert contents(tmp_path / "out") == before


def test_complete_run_is_not_repeated(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = {"output_file": ["out.tfrecord"]}
    first = make_records(corpus, tmp_path, **flags)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert make_records(corpus, tmp_path, **flags) == first
    assert "already complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    next(tmp_path.glob("*.tfrecord")).unlink()  # a missing shard is made again
    make_records(corpus, tmp_path, **flags)
    assert {path.name for path in times} == contents(tmp_path).keys()
    manifest = tmp_path / "out.manifest.json"
    assert str(tmp_path) not in manifest.read_text()
    lines = outputs.describe_outputs(make_options(corpus, tmp_path)).splitlines()
    assert lines == [f"records: {tmp_path}/out-*-of-00003.tfrecord", f"manifest: {tmp_path}/out.manifest.json"]
    manifest.write_text(manifest.read_text().replace('"format": ', '"format": 9'))
    told = refusal(make_records, corpus, tmp_path, **flags)
    assert_mentions(told, "out.manifest.json", "--output_file")
    assert "--format" not in told


def test_changed_input_files_are_named():
    def describe(*inputs: str) -> str:
        return outputs._describe_changed_inputs(*([{"file": each, "sha256": ""} for each in some] for some in inputs))

    assert_mentions(describe("abcdefg", "gh"), "a is missing", "e is missing")
    assert describe("abcdefg", "gh").count(" is ") == 5
    assert_mentions(describe("ab", "ba"), "--input_file", "order")


@BOTH
def test_one_sentence_is_enough_and_a_repeated_file_is_read_repeatedly(algorithm, corpus, tmp_path, capsys):
    path = write_text(tmp_path / "one.txt", "return the value of the object.\n\n")
    for count in (1, 3):
        inputs = [path] * count, corpus[1]
        found = make_records(inputs, tmp_path / f"{count}", algorithm=algorithm, num_shards=1)
        expected = {"text_documents": count, "instances": 2 * count, "random_next": 2 * count}
        assert found.items() >= {**expected, "sequential": 2 * found["text_tokens"]}.items()
        assert "text: sentences (" in capsys.readouterr().out


@BOTH
def test_text_that_cannot_be_used_is_refused(algorithm, vocab_file, tmp_path):
    def make(path: str, **changes: object):
        return make_records(([path], vocab_file), tmp_path / "out", algorithm=algorithm, num_shards=1, **changes)

    for content in ("\n \n\n", "\n\u200b\n\n"):
        assert_rejected(("--input_file", "text"), make, write_text(tmp_path / "empty.txt", content))
    assert_rejected(("/proc/self/mem", "Input/output"), make, "/proc/self/mem")
    latin = write_text(tmp_path / "latin1.txt", b"the cat sat\nthe \xe9 dog\nthe sun\n")
    names = (latin, "line 2", "0xe9", "column 5", "UTF-8", "--drop_invalid_utf8")
    assert_rejected(names, make, latin, input_format="sentences")
    assert not list((tmp_path / "out").iterdir())
    summary = make(latin, input_format="sentences", drop_invalid_utf8=True)
    assert (summary["text_tokens"], summary["text_invalid_bytes"], summary["text_invalid_lines"]) == (3 + 2 + 2, 1, 1)


@BOTH
def test_manifest_stores_that_records_keep_accents(algorithm, tmp_path):
    text = write_text(tmp_path / "text.txt", "Über uns\nund über euch\n\nuber alles\n")
    vocab = write_vocab(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, "uber", "über"])
    recorded = []
    for strip_accents, ids in ((None, {5}), (True, {5}), (False, {5, 6})):
        folder = tmp_path / str(strip_accents)
        flags = {"algorithm": algorithm, "num_shards": 1, "dupe_factor": 1}
        make_records(([text], vocab), folder, **flags, strip_accents=strip_accents)
        recorded.append(read_manifest(folder)["source"]["flags"])
        assert {*record_codec.restore_masked_ids(parse_records(folder)).ravel().tolist()} & {5, 6} == ids
    assert "strip_accents" not in recorded[0]
    assert recorded[1:] == [recorded[0], {**recorded[0], "strip_accents": False}]


def test_a_vocabulary_of_the_other_casing_is_refused(corpus, tmp_path):
    cased = write_vocab(tmp_path / "cased.txt", [*WORDS, "Anna", "Berlin"])
    assert_rejected((cased, "'Anna'", "--do_lower_case=false"), make_records, (corpus[0], cased), tmp_path)
    assert_rejected((corpus[1], "--do_lower_case=true"), make_records, corpus, tmp_path, do_lower_case=False)
    make_records((corpus[0][:1], cased), tmp_path, do_lower_case=False)


@BOTH
def test_records_contain_only_the_remaining_documents(algorithm, corpus, tmp_path, capsys):
    documents = list(formats.read_documents(corpus[0][0], "sentences"))
    others = [each for number, each in enumerate(documents) if number % 5]
    rows = [{"text": f"{each[0]}\n  {each[1]}", "label": "x"} for each in documents[::5]]
    excluding = write_rows(tmp_path / "dev.jsonl", rows)

    def make(name: str, documents: list[list[str]], **changes: object):
        text = write_text(tmp_path / f"{name}.txt", "\n\n".join("\n".join(each) for each in documents))
        flags = {"algorithm": algorithm, "num_shards": 1, "input_format": "sentences", **changes}
        return make_records(([text], corpus[1]), tmp_path / name, **flags)

    make("others", others)
    summary = make("all", documents, exclude_texts=[excluding])
    assert contents(tmp_path / "all", "*.tfrecord") == contents(tmp_path / "others", "*.tfrecord")
    assert "format of the text" not in capsys.readouterr().out
    assert summary["text_excluded"] == len(documents) - len(others)
    assert f"{summary['text_excluded']} more left out because of --exclude_texts" in describe(summary, 2)
    described = read_manifest(tmp_path / "all")
    listed = {"file": "dev.jsonl", "sha256": files.sha256(excluding)}
    assert described["source"]["flags"]["exclude_texts"] == [listed]
    assert described["statistics"]["text_excluded"] == summary["text_excluded"]
    assert "exclude_texts" not in read_manifest(tmp_path / "others")["source"]["flags"]
    assert make("all", documents, exclude_texts=[excluding]) == summary  # already complete
    assert_rejected(("--exclude_texts", "dev.jsonl", tmp_path / "all"), make, "all", documents)
    assert_rejected((1, "--exclude_texts"), make, "none", documents[:1], exclude_texts=[excluding])


def test_shares_in_the_summary_are_relative_to_their_totals_and_high_ones_give_a_warning():
    counts = {"text_documents": 3, "text_tokens": 200, "text_unknown": 5, "text_excluded": 7, "instances": 10}
    counts |= {"positions": 400, "tokens": 300, "maskable": 250, "predictions": 40, "random_next": 4, "sequential": 300}
    lines = dict(re.split("  +", line) for line in describe(counts, 3).splitlines())
    starts = {"documents": "3, 7 ", "tokens in text": "200, 2.50 %", "random segments": "40.0 "}
    starts |= {"predictions": "16.0 ", "padding": "25.0 ", "truncated": "50.0 "}
    assert {name: lines[name][: len(start)] for name, start in starts.items()} == starts
    assert "warning" not in describe(counts | {"text_unknown": 20}, 3)
    assert "warning: 10.50 % of the tokens are [UNK]" in describe(counts | {"text_unknown": 21}, 3)
    assert "warning" not in describe(counts | {"instances": 100, "random_next": 75}, 3)
    warning = describe(counts | {"instances": 100, "random_next": 76}, 3)
    assert_mentions(warning, "76 of 100 segment pairs", "--sentence_objective=none")
    counts |= {"sequential": 299, "text_invalid_bytes": 7}
    assert_mentions(describe(counts, 3), "50.17 %", "--max_seq_length=40", "--input_format=paragraphs")
    assert "not UTF-8: 7\n" in describe(counts, 3)
    del counts["text_excluded"]
    assert not re.search("--exclude_texts|predictions .*%", describe(counts | {"predictions": 0}, 3))


CHARACTERS = [chr(code) for code in range(0x4E00, 0x4E40)]
FIRST = 2**15  # The id of the first character. Marked ids do not fit into 16 bits.
LISTED = ["".join(CHARACTERS[start : start + 4]) for start in range(0, 48, 4)]


def count_masked_characters(batch: dict[str, np.ndarray]) -> list[int]:
    """Returns the number of masked characters of each listed word that is in a record as a whole."""
    counts = []
    for row, ids in enumerate(record_codec.restore_masked_ids(batch)):
        masked = {*batch["masked_lm_positions"][row, batch["masked_lm_weights"][row] > 0].tolist()}
        text = "".join(CHARACTERS[number - FIRST] if number >= FIRST else " " for number in ids)
        words = re.finditer("|".join(LISTED), text)
        counts += [len(masked.intersection(range(*word.span()))) for word in words]
    return counts


@BOTH
def test_listed_words_are_masked_completely_and_nothing_else_changes(algorithm, tmp_path):
    rng = random.Random(0)
    # Text of four-character words and single characters. Each sentence ends with a word of two unknown characters.
    lines = ["".join(rng.choices([*LISTED, *CHARACTERS[48:]], k=9)) + "龍龍\n" for _ in range(720)]
    documents = ["".join(lines[start : start + 12]) for start in range(0, 720, 12)]
    text = write_text(tmp_path / "text.txt", "\n".join(documents))
    unused = [f"[unused{number}]" for number in range(FIRST - len(SPECIAL_TOKENS))]
    corpus = [text], write_vocab(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, *unused, *CHARACTERS])
    flags = {"algorithm": algorithm, "num_shards": 1, "do_whole_word_mask": True}
    words = write_vocab(tmp_path / "words.txt", [*LISTED, "龍龍"])
    for name, boundaries in (("plain", None), ("marked", words)):
        summary = make_records(corpus, tmp_path / name, word_boundaries=boundaries, **flags)
        assert summary["text_unknown"] == 2 * 720  # the words at the ends of sentences
    marked, plain = (parse_records(tmp_path / name) for name in ("marked", "plain"))
    masked = count_masked_characters(marked)
    assert set(masked) == {0, 4}
    assert masked.count(4) > 100
    assert sum(0 < count < 4 for count in count_masked_characters(plain)) > 100
    assert marked["input_ids"].max() < FIRST + len(CHARACTERS)
    if algorithm == "fast":
        ids = [record_codec.restore_masked_ids(batch) for batch in (marked, plain)]  # masking draws before the shuffle
        assert np.array_equal(*(each[np.lexsort(each.T)] for each in ids))
    marked, plain = (read_manifest(tmp_path / name)["source"]["flags"] for name in ("marked", "plain"))
    assert marked["word_boundaries"].startswith("sha256: ")
    assert "word_boundaries" not in plain
