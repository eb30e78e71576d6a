import gzip
import hashlib
import json
import pathlib
import random
import subprocess
import sys

import pytest
import tensorflow as tf

from official_bert import progress, text_pairs
from data_gen import masking, pipeline
from data_gen.instances import Law, instances_of_document
from official_bert.errors import UserError
from official_bert.tokenization import load_vocab
from tests.conftest import ROOT

GOLDEN = json.loads((ROOT / "tests" / "golden" / "pretraining_records.json").read_text())


def written(options: pipeline.Options) -> list[list[dict[str, list[float]]]]:
    """The records of each output file, as plain values."""
    pipeline.create_pretraining_data(options)
    files = []
    for path in options.output_file:
        records = []
        for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
            features = tf.train.Example.FromString(serialized).features.feature
            records.append({
                name: list(value.float_list.value or value.int64_list.value) for name, value in features.items()
            })  # fmt: skip
        files.append(records)
    return files


def digest(records: list[dict[str, list[float]]]) -> str:
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


@pytest.fixture
def corpus(tmp_path: pathlib.Path) -> list[str]:
    """Three files of short documents, written by a seeded generator of nonsense."""
    rng = random.Random(7)
    words = [
        "the",
        "cat",
        "dog",
        "sat",
        "ran",
        "on",
        "mat",
        "in",
        "sun",
        "cats",
        "playing",
        "walked",
        "and",
        "unaffable",
        "zebra",
    ]
    paths = []
    for number in range(3):
        lines = []
        for _ in range(6):
            for _ in range(rng.randint(1, 7)):
                lines.append(" ".join(rng.choice(words) for _ in range(rng.randint(1, 9))) + ".")
            lines.append("")
        path = tmp_path / f"text{number}.txt"
        path.write_text("\n".join(lines))
        paths.append(str(path))
    return paths


def options_for(corpus: list[str], vocab: str, tmp_path: pathlib.Path, **changes: object) -> pipeline.Options:
    values = {
        "input_file": corpus,
        "output_file": [str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")],
        "vocab_file": vocab,
        "max_seq_length": 24,
        "max_predictions_per_seq": 4,
        "dupe_factor": 3,
        "algorithm": "reference",
        **changes,
    }
    return pipeline.Options(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_records_equal_those_of_the_original_algorithm(
    case: dict[str, object], corpus: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    options = options_for(corpus, vocab_file, tmp_path, **case["options"])
    files = written(options)
    assert [len(records) for records in files] == case["records"]
    assert files[0][0] == case["first"]
    assert [digest(records) for records in files] == case["digests"]


@pytest.mark.parametrize("case", GOLDEN["real"], ids=lambda case: case["name"])
def test_records_of_real_text_equal_those_of_the_original_algorithm(
    case: dict[str, object], test_data: pathlib.Path, tmp_path: pathlib.Path
):
    options = pipeline.Options(
        input_file=[str(test_data / "text" / name) for name in case["text"]],
        output_file=[str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")],
        vocab_file=str(test_data / "vocab" / case["vocab"]),
        algorithm="reference",
        **case["options"],
    )
    files = written(options)
    assert [len(records) for records in files] == case["records"]
    assert [digest(records) for records in files] == case["digests"]


def test_same_seed_gives_the_same_bytes_and_another_seed_others(
    corpus: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    contents = []
    for number, seed in enumerate((1, 1, 2)):
        (tmp_path / str(number)).mkdir()
        options = options_for(corpus, vocab_file, tmp_path / str(number), random_seed=seed)
        pipeline.create_pretraining_data(options)
        contents.append([pathlib.Path(path).read_bytes() for path in options.output_file])
    assert contents[0] == contents[1] != contents[2]


def test_records_are_what_the_schema_says(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    vocab = load_vocab(vocab_file)
    for record in [record for records in written(options_for(corpus, vocab_file, tmp_path)) for record in records]:
        ids, mask, segments = record["input_ids"], record["input_mask"], record["segment_ids"]
        positions, labels, weights = (record[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))
        assert len(ids) == len(mask) == len(segments) == 24
        assert len(positions) == len(labels) == len(weights) == 4
        length = sum(mask)
        assert mask == [1] * length + [0] * (24 - length)
        assert ids[length:] == segments[length:] == [0] * (24 - length)
        assert ids[0] == vocab["[CLS]"]
        first_sep = next(i for i in range(length) if ids[i] == vocab["[SEP]"] and i not in positions)
        assert segments[:length] == [0] * (first_sep + 1) + [1] * (length - first_sep - 1)
        assert ids[length - 1] == vocab["[SEP]"]
        count = int(sum(weights))
        assert count == masking.number_to_predict(length, 0.15, 4)
        assert weights == [1.0] * count + [0.0] * (4 - count)
        assert positions[:count] == sorted(set(positions[:count]))
        assert positions[count:] == labels[count:] == [0] * (4 - count)
        assert record["next_sentence_labels"] in ([0], [1])


@pytest.mark.parametrize(("tokens", "expected"), [(10, 2), (30, 4), (50, 8), (70, 10), (128, 19), (512, 76), (3, 1)])
def test_number_of_predictions_rounds_half_to_even(tokens: int, expected: int):
    assert masking.number_to_predict(tokens, 0.15, 76) == expected


def masking_vocabulary() -> masking.MaskingVocabulary:
    # 0 [PAD], 1 [UNK], 2 [CLS], 3 [SEP], 4 [MASK], 5 to 9 words, 10 to 14 pieces within words
    return masking.MaskingVocabulary(list(range(15)), frozenset(range(10, 15)), frozenset((2, 3)), 4)


def test_eighty_of_a_hundred_become_mask_ten_stay_ten_are_random():
    rng = random.Random(0)
    ids = [2, *[5] * 60, 3, *[6] * 60, 3]
    became_mask = stayed = changed = 0
    for _ in range(500):
        masked, positions, labels = masking.mask(ids, 20, masking_vocabulary(), False, rng)
        assert labels == [ids[position] for position in positions]
        assert len(positions) == 20
        for position in positions:
            became_mask += masked[position] == 4
            stayed += masked[position] == ids[position]
            changed += masked[position] not in (4, ids[position])
        untouched = set(range(len(ids))) - set(positions)
        assert all(masked[position] == ids[position] for position in untouched)
    # A random one is [MASK] or the same word once in fifteen.
    assert became_mask / 10_000 == pytest.approx(0.8 + 0.1 / 15, abs=0.02)
    assert stayed / 10_000 == pytest.approx(0.1 + 0.1 / 15, abs=0.015)
    assert changed / 10_000 == pytest.approx(0.1 * 13 / 15, abs=0.015)


def test_whole_words_are_masked_together():
    ids = [2, 5, 10, 11, 6, 12, 7, 3, 8, 13, 9, 3]
    words = [{1, 2, 3}, {4, 5}, {6}, {8, 9}, {10}]
    rng = random.Random(0)
    for _ in range(200):
        _, positions, _ = masking.mask(ids, 4, masking_vocabulary(), True, rng)
        assert len(positions) <= 4
        chosen = set(positions)
        assert all(word <= chosen or not word & chosen for word in words)


def test_a_piece_at_the_front_of_b_joins_the_last_word_of_a_as_in_the_original():
    # a, dog, ##gy, [SEP], ##ing: one word of three positions on both sides of [SEP]
    ids = [2, 5, 6, 10, 3, 11, 3]
    rng = random.Random(0)
    chosen = {tuple(masking.mask(ids, 3, masking_vocabulary(), True, rng)[1]) for _ in range(50)}
    assert chosen == {(1,), (2, 3, 5)}


def test_truncation_shortens_the_longer_and_of_equal_ones_the_second():
    a, b = list(range(6)), list(range(4))
    text_pairs.truncate_at_random_ends(a, b, 7, random.Random(0))
    assert (len(a), len(b)) == (4, 3)


def law(**changes: object) -> Law:
    values = {
        "max_seq_length": 16,
        "max_predictions_per_seq": 3,
        "masked_lm_prob": 0.15,
        "short_seq_prob": 0.0,
        "do_whole_word_mask": False,
        "cls": 2,
        "sep": 3,
        "vocabulary": masking_vocabulary(),
        **changes,
    }
    return Law(**values)  # type: ignore[arg-type]


def test_document_of_one_sentence_always_gets_a_random_second_segment():
    documents = [[[5, 6, 7]], [[8, 9]]]
    made = list(instances_of_document(documents, 0, law(), random.Random(0)))
    assert [instance.is_random_next for instance in made] == [True]


def test_single_document_pairs_with_itself():
    made = list(instances_of_document([[[5, 6]]], 0, law(), random.Random(0)))
    assert made[0].is_random_next
    assert made[0].segment_ids == [0] * 4 + [1] * 3


def test_unused_sentences_are_put_back():
    document = [[5], [6], [7], [8]]
    rng = random.Random(3)
    used = 0
    for _ in range(100):
        for instance in instances_of_document([document, [[9]]], 0, law(), rng):
            length = len(instance.segment_ids)
            used += instance.segment_ids.index(1) - 2 + (0 if instance.is_random_next else length - 4)
    assert used >= 400 - 100  # each sentence is read once; a random b uses none of them


def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "data_gen.create_pretraining_data", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_script_writes_records_and_prints_a_summary(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    done = run_script(
        f"--input_file={tmp_path}/text*.txt",
        f"--output_file={tmp_path}/out.tfrecord",
        f"--vocab_file={vocab_file}",
        "--max_seq_length=24",
        "--max_predictions_per_seq=2",
        "--dupe_factor=2",
    )
    assert done.returncode == 0, done.stderr
    for line in ("documents", "instances", "random next", "to be predicted", "padding", "[UNK]"):
        assert line in done.stdout
    assert "pass --max_predictions_per_seq=4" in done.stderr
    assert sum(1 for _ in tf.data.TFRecordDataset(f"{tmp_path}/out.tfrecord")) > 0


def test_script_says_what_is_wrong_and_writes_nothing(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    done = run_script("--input_file=none*.txt", f"--output_file={tmp_path}/out", f"--vocab_file={vocab_file}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: --input_file: no file matches 'none*.txt'")
    done = run_script("--input_fille=x", f"--output_file={tmp_path}/out", f"--vocab_file={vocab_file}")
    assert done.returncode != 0
    assert "Unknown command line flag 'input_fille'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("changes", "message"), [
    ({"input_file": []}, "--input_file is empty"),
    ({"output_file": []}, "--output_file is empty"),
    ({"output_file": ["x", "x"]}, "--output_file names a file twice"),
    ({"vocab_file": "none.txt"}, "there is no file none.txt"),
    ({"max_seq_length": 4}, "--max_seq_length is 4"),
    ({"dupe_factor": 0}, "--dupe_factor is 0"),
    ({"max_seq_length": 100_000}, "--max_seq_length is 100,000; expected at most 65,535"),
    ({"max_predictions_per_seq": 100_000}, "--max_predictions_per_seq is 100,000"),
    ({"shard_size_mb": -1}, "--shard_size_mb is -1"),
    ({"input_file": ["/proc"]}, r"--input_file: /proc is a folder; for all files in it give /proc/\*"),
    ({"masked_lm_prob": 1.5}, "--masked_lm_prob is 1.5"),
    ({"short_seq_prob": -1.0}, "--short_seq_prob is -1.0"),
    ({"output_file": ["/proc/none/x"]}, "cannot make the folder /proc/none"),
])  # fmt: skip
def test_bad_options_are_refused(
    changes: dict[str, object], message: str, corpus: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    with pytest.raises(UserError, match=message):
        pipeline.create_pretraining_data(options_for(corpus, vocab_file, tmp_path, **changes))


def test_empty_text_is_refused(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "empty.txt"
    path.write_text("\n \n\n")
    with pytest.raises(UserError, match="the input holds no text"):
        pipeline.create_pretraining_data(options_for([str(path)], vocab_file, tmp_path))


def test_an_input_is_never_overwritten(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="which is an input"):
        pipeline.create_pretraining_data(options_for(corpus, vocab_file, tmp_path, output_file=[corpus[0]]))


def test_the_vocabulary_is_never_overwritten(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="--output_file names .*vocab.txt, which is an input"):
        pipeline.create_pretraining_data(options_for(corpus, vocab_file, tmp_path, output_file=[vocab_file]))


def test_the_reference_algorithm_names_the_other_one_for_compressed_text(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"the cat sat\n"))
    with pytest.raises(UserError, match="text.txt.gz is compressed, .* or take --algorithm=fast"):
        pipeline.create_pretraining_data(options_for([str(path)], vocab_file, tmp_path))


def test_text_is_used_ten_times_but_once_where_masks_are_made_while_training():
    def used(**flags: object) -> int:
        return pipeline.Options(["text"], ["records"], "vocab", **flags).dupe_factor  # type: ignore[arg-type]

    assert [used(), used(masking="dynamic"), used(masking="dynamic", dupe_factor=3)] == [10, 1, 3]


def test_progress_tells_small_amounts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("official_bert.progress._SECONDS_BETWEEN_LINES", -1.0)
    progress.Progress("tokenizing", 0.84, "MB").update(0.0521)
    progress.Progress("making instances", 12_345, "blocks").update(7)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("tokenizing: 0.052 of 0.84 MB (6 %), ")
    assert lines[1].startswith("making instances: 7 of 12,345 blocks (0 %), ")


def test_bytes_that_are_not_utf8_are_named_or_dropped(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"the cat sat\nthe \xe9 dog\nthe sun\n")
    with pytest.raises(UserError, match=r"latin1.txt, line 2: byte 0xe9 at column 5 is not UTF-8"):
        pipeline.create_pretraining_data(options_for([str(path)], vocab_file, tmp_path))
    assert not list(tmp_path.glob("*.tfrecord*"))
    options = options_for([str(path)], vocab_file, tmp_path, drop_invalid_utf8=True)
    summary = pipeline.create_pretraining_data(options)
    assert summary.text_tokens == 3 + 2 + 2


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    corpus: list[str], vocab_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    options = options_for(corpus, vocab_file, tmp_path)
    pipeline.create_pretraining_data(options)
    (tmp_path / "a.manifest.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data_gen.writer.records.encode", fail)
    with pytest.raises(UserError, match="cannot write .*: No space left on device"):
        pipeline.create_pretraining_data(options_for(corpus, vocab_file, tmp_path, random_seed=9))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
