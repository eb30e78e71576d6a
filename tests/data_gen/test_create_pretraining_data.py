import gzip
import json
import pathlib
import random
import subprocess
import sys

import pytest
import tensorflow as tf

from data_gen.inspection import verification
from data_gen.options import RecordOptions, VerificationOptions
from data_gen.pipelines import one_machine
from data_gen.rules import masking
from data_gen.rules.instances import InstanceConfig, instances_of_document
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.tokenization import pairs
from official_bert.tokenization.exact import load_vocab
from official_bert.utils import progress
from tests.conftest import ROOT
from tests.golden import make_pretraining_records

GOLDEN = json.loads(make_pretraining_records.GOLDEN_FILE.read_text())


def written(options: RecordOptions) -> list[list[dict[str, list[float]]]]:
    """The records of each output file, as plain values."""
    one_machine.create_pretraining_data(options)
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


@pytest.fixture
def corpus(tmp_path: pathlib.Path) -> list[str]:
    """Three files of short documents."""
    paths = []
    for number, text in enumerate(make_pretraining_records.corpus_texts()):
        path = tmp_path / f"text{number}.txt"
        path.write_text(text)
        paths.append(str(path))
    return paths


def options_for(corpus: list[str], vocab: str, tmp_path: pathlib.Path, **changes: object) -> RecordOptions:
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
    return RecordOptions(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_records_equal_those_of_the_original_algorithm(
    case: dict[str, object], corpus: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    options = options_for(corpus, vocab_file, tmp_path, **case["options"])
    files = written(options)
    assert [len(records) for records in files] == case["records"]
    assert files[0][0] == case["first"]
    assert [make_pretraining_records.digest(records) for records in files] == case["digests"]


@pytest.mark.parametrize("case", GOLDEN["real"], ids=lambda case: case["name"])
def test_records_of_real_text_equal_those_of_the_original_algorithm(
    case: dict[str, object], test_data: pathlib.Path, tmp_path: pathlib.Path
):
    options = RecordOptions(
        input_file=[str(test_data / "text" / name) for name in case["text"]],
        output_file=[str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")],
        vocab_file=str(test_data / "vocab" / case["vocab"]),
        algorithm="reference",
        **case["options"],
    )
    files = written(options)
    assert [len(records) for records in files] == case["records"]
    assert [make_pretraining_records.digest(records) for records in files] == case["digests"]


def test_same_seed_gives_the_same_bytes_and_another_seed_others(
    corpus: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    contents = []
    for number, seed in enumerate((1, 1, 2)):
        (tmp_path / str(number)).mkdir()
        options = options_for(corpus, vocab_file, tmp_path / str(number), random_seed=seed)
        one_machine.create_pretraining_data(options)
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
    pairs.truncate_at_random_ends(a, b, 7, random.Random(0))
    assert (len(a), len(b)) == (4, 3)


def test_truncation_takes_the_original_s_steps_and_linear_time():
    def original(a: list[int], b: list[int], most: int, rng: random.Random) -> None:
        while len(a) + len(b) > most:
            longer = a if len(a) > len(b) else b
            longer.pop(0 if rng.random() < 0.5 else -1)

    for seed in range(30):
        sizes = random.Random(seed).choices(range(40), k=2)
        expected, found = [[list(range(size)) for size in sizes] for _ in range(2)]
        original(*expected, 20, random.Random(seed))
        pairs.truncate_at_random_ends(*found, 20, random.Random(seed))
        assert found == expected
    # A line of some megabytes: if all behind the front moved at each removal, this would take an hour.
    long = list(range(3_000_000))
    pairs.truncate_at_random_ends(long, [], 125, random.Random(0))
    assert len(long) == 125


def config(**changes: object) -> InstanceConfig:
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
    return InstanceConfig(**values)  # type: ignore[arg-type]


def test_document_of_one_sentence_always_gets_a_random_second_segment():
    documents = [[[5, 6, 7]], [[8, 9]]]
    instances = list(instances_of_document(documents, 0, config(), random.Random(0)))
    assert [instance.is_random_next for instance in instances] == [True]


def test_single_document_pairs_with_itself():
    instances = list(instances_of_document([[[5, 6]]], 0, config(), random.Random(0)))
    assert instances[0].is_random_next
    assert instances[0].segment_ids == [0] * 4 + [1] * 3


def test_unused_sentences_are_put_back():
    document = [[5], [6], [7], [8]]
    rng = random.Random(3)
    random_next = 0
    for _ in range(100):
        used: list[int] = []
        for instance in instances_of_document([document, [[9]]], 0, config(max_predictions_per_seq=0), rng):
            first = instance.segment_ids.index(1)
            random_next += instance.is_random_next
            used += instance.input_ids[1 : first - 1]
            used += [] if instance.is_random_next else instance.input_ids[first:-1]
        assert used == [5, 6, 7, 8]  # each sentence once, in order: what follows a when b is random comes again
    assert random_next > 100


def run_script(*flags: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs the script as a file, from another folder, as users of the original do."""
    command = [sys.executable, str(ROOT / "data_gen" / "create_pretraining_data.py"), *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_script_writes_records_and_prints_a_summary(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    done = run_script(
        f"--input_file={tmp_path}/text*.txt",
        f"--output_file={tmp_path}/out.tfrecord",
        f"--vocab_file={vocab_file}",
        "--max_seq_length=24",
        "--max_predictions_per_seq=2",
        "--dupe_factor=2",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for line in ("documents", "instances", "random or swapped", "to be predicted", "padding", "[UNK]"):
        assert line in done.stdout
    assert "pass --max_predictions_per_seq=4" in done.stderr
    assert sum(1 for _ in tf.data.TFRecordDataset(f"{tmp_path}/out.tfrecord")) > 0


def test_script_says_what_is_wrong_and_writes_nothing(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    flags = ["--input_file=none*.txt", f"--output_file={tmp_path}/out", f"--vocab_file={vocab_file}"]
    done = run_script(*flags, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: --input_file: no file matches 'none*.txt'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("changes", "message"), [
    ({"input_file": []}, "--input_file is empty"),
    ({"output_file": []}, "--output_file is empty"),
    ({"output_file": ["x", "x"]}, "--output_file names one file twice, as x and as x"),
    ({"num_shards": 100_000}, "--num_shards is 100,000; expected at most 99,999"),
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
        one_machine.create_pretraining_data(options_for(corpus, vocab_file, tmp_path, **changes))


def test_empty_text_is_refused(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "empty.txt"
    path.write_text("\n \n\n")
    with pytest.raises(UserError, match="the input holds no text"):
        one_machine.create_pretraining_data(options_for([str(path)], vocab_file, tmp_path))


def test_an_input_is_never_overwritten(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="which is an input"):
        one_machine.create_pretraining_data(options_for(corpus, vocab_file, tmp_path, output_file=[corpus[0]]))


def test_the_vocabulary_is_never_overwritten(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="--output_file would write .*vocab.txt, which is an input"):
        one_machine.create_pretraining_data(options_for(corpus, vocab_file, tmp_path, output_file=[vocab_file]))


def test_the_reference_algorithm_names_the_other_one_for_compressed_text(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"the cat sat\n"))
    with pytest.raises(UserError, match="text.txt.gz is compressed, .* or take --algorithm=fast"):
        one_machine.create_pretraining_data(options_for([str(path)], vocab_file, tmp_path))


def test_text_is_used_ten_times_but_once_where_masks_are_made_while_training():
    def used(**flags: object) -> int:
        return RecordOptions(["text"], ["records"], "vocab", **flags).dupe_factor  # type: ignore[arg-type]

    assert [used(), used(masking="dynamic"), used(masking="dynamic", dupe_factor=3)] == [10, 1, 3]


def test_progress_tells_small_amounts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("official_bert.utils.progress._SECONDS_BETWEEN_LINES", -1.0)
    progress.Progress("tokenizing", 0.84, "MB").update(0.0521)
    progress.Progress("making instances", 12_345, "blocks").update(7)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("tokenizing: 0.052 of 0.84 MB (6 %), ")
    assert lines[1].startswith("making instances: 7 of 12,345 blocks (0 %), ")


def test_bytes_that_are_not_utf8_are_named_or_dropped(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"the cat sat\nthe \xe9 dog\nthe sun\n")
    with pytest.raises(UserError, match=r"latin1.txt, line 2: byte 0xe9 at column 5 is not UTF-8"):
        one_machine.create_pretraining_data(options_for([str(path)], vocab_file, tmp_path))
    assert not list(tmp_path.glob("*.tfrecord*"))
    options = options_for([str(path)], vocab_file, tmp_path, drop_invalid_utf8=True)
    summary = one_machine.create_pretraining_data(options)
    assert summary.text_tokens == 3 + 2 + 2


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    corpus: list[str], vocab_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    options = options_for(corpus, vocab_file, tmp_path)
    one_machine.create_pretraining_data(options)
    (tmp_path / "a.manifest.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data_gen.pipelines.writer.record_codec.encode", fail)
    with pytest.raises(UserError, match="cannot write .*: No space left on device"):
        one_machine.create_pretraining_data(options_for(corpus, vocab_file, tmp_path, random_seed=9))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_one_output_in_two_spellings_is_refused(corpus: list[str], vocab_file: str, tmp_path: pathlib.Path):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "b.tfrecord").symlink_to(tmp_path / "a.tfrecord")
    for other in (f"{tmp_path}/./a.tfrecord", f"{tmp_path}/link/a.tfrecord", f"{tmp_path}/b.tfrecord"):
        options = options_for(corpus, vocab_file, tmp_path, output_file=[f"{tmp_path}/a.tfrecord", other])
        with pytest.raises(UserError, match="--output_file names one file twice, as .*a.tfrecord and as "):
            one_machine.create_pretraining_data(options)
    assert not (tmp_path / "a.tfrecord").exists()


@pytest.mark.parametrize("flags", [{"num_shards": 2}, {"shard_size_mb": 1}])
def test_an_input_with_the_name_of_a_shard_is_never_overwritten(
    flags: dict[str, int], corpus: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    shard = tmp_path / "text-00001-of-00002.txt"
    inputs = [corpus[0], str(shard)]
    flags = {"algorithm": "fast", "output_file": [str(tmp_path / "text.txt")], **flags}
    for make in (lambda: shard.write_text("the cat\n"), lambda: (shard.unlink(), shard.symlink_to(corpus[1]))):
        make()
        for each in (inputs, [corpus[1], str(shard)], corpus):
            if each is corpus and not shard.is_symlink():
                continue  # then the shard is no input
            with pytest.raises(UserError, match="would write .*text-00001-of-00002.txt, which is an input"):
                one_machine.create_pretraining_data(options_for(each, vocab_file, tmp_path, **flags))
    assert shard.read_text() == pathlib.Path(corpus[1]).read_text()


def test_manifest_and_working_folder_never_destroy_an_input(vocab_file: str, tmp_path: pathlib.Path):
    for name in ("a.manifest.json", "a.work/text.txt"):
        text = tmp_path / name
        text.parent.mkdir(exist_ok=True)
        text.write_text("the cat sat\n")
        with pytest.raises(UserError, match=r"which is an input|is in the working folder"):
            one_machine.create_pretraining_data(options_for([str(text)], vocab_file, tmp_path, algorithm="fast"))
        assert text.read_text() == "the cat sat\n"


@pytest.mark.parametrize("algorithm", ["reference", "fast"])
def test_records_in_several_folders_have_a_manifest_in_each(
    algorithm: str, corpus: list[str], vocab_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    outputs = [str(tmp_path / name) for name in ("one/a.tfrecord", "two/b.tfrecord", "one/c.tfrecord")]
    options = options_for(corpus, vocab_file, tmp_path, output_file=outputs, algorithm=algorithm, num_workers=1)
    first = one_machine.create_pretraining_data(options)
    described = manifest.of_files(outputs)
    assert [shard.file for _, shard in described.values()] == ["a.tfrecord", "c.tfrecord", "b.tfrecord"]
    assert sum(shard.records for _, shard in described.values()) == first.instances
    findings = verification.verify(VerificationOptions(input_file=outputs))
    assert (findings.problems, findings.files) == ([], 3)
    assert one_machine.create_pretraining_data(options) == first
    assert "complete already" in capsys.readouterr().out
    pathlib.Path(outputs[1]).unlink()
    assert one_machine.create_pretraining_data(options) == first
    assert "complete already" not in capsys.readouterr().out
    assert pathlib.Path(outputs[1]).exists()


@pytest.mark.parametrize("algorithm", ["reference", "fast"])
def test_a_text_file_that_cannot_be_read_is_named(algorithm: str, vocab_file: str, tmp_path: pathlib.Path):
    options = options_for(["/proc/self/mem"], vocab_file, tmp_path, algorithm=algorithm)
    with pytest.raises(UserError, match="cannot read /proc/self/mem: Input/output error"):
        one_machine.create_pretraining_data(options)
