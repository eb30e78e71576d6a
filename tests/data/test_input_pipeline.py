"""Batches of records: their order, starting at any position in it, and dynamic masking."""

import collections
import gzip
import itertools
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from data_gen.inspection import batches, validation
from data_gen.pipelines import writer
from official_bert.data import input_pipeline, manifest, record_codec, record_damage, record_reader, record_schema
from official_bert.data.dynamic_masking import DynamicMasking, make_record_keys
from official_bert.data.input_pipeline import RecordSource
from official_bert.data.next_token_targets import add_next_token_targets
from official_bert.data.packing import count_rows
from official_bert.pretraining import record_files
from official_bert.pretraining.options import PretrainingOptions
from official_bert.pretraining.run_records import RunRecords
from official_bert.utils import files
from tests.make import WORDS, assert_mentions, assert_rejected, flip_bits, tiny_config, write_manifest, write_text

VOCAB = {word: number for number, word in enumerate(WORDS)}
LENGTH, LIMIT = 16, 4
UNMASKED = record_schema.unmasked_schema(LENGTH, len(WORDS), 2)


def write_records(folder: pathlib.Path, counts: list[int], compress: bool = False) -> list[str]:
    """Writes files of unmasked records whose tokens are all different."""
    rng, position, paths = np.random.default_rng(1), np.arange(LENGTH), []
    for number, count in enumerate(counts):
        length, first = rng.integers(8, LENGTH + 1, (count, 1)), rng.integers(3, 5, (count, 1))
        mask = position < length
        ids = rng.integers(5, len(WORDS), (count, LENGTH)) * mask
        ids[:, 0] = VOCAB["[CLS]"]
        ids[(position == first) | (position == length - 1)] = VOCAB["[SEP]"]
        batch = {"input_ids": ids, "input_mask": mask, "segment_ids": mask & (position > first)}
        batch["next_sentence_labels"] = rng.integers(0, 2, (count, 1))
        paths.append(str(folder / f"{number}.tfrecord"))
        with writer.open_shard(paths[-1], compress) as shard:
            shard.write(writer.frame_records(record_codec.encode(batch, UNMASKED)))
    return paths


def parse_records(*paths: str) -> dict[str, tf.Tensor]:
    """Returns the features of all records, in order."""
    return record_codec.parse(tf.constant([each for path in paths for each in record_reader.read_file(path)]), UNMASKED)


def masking(whole_words: bool = False):
    return DynamicMasking(VOCAB, LIMIT, 0.3, whole_words).mask


def find_records(pattern, vocab_file: str | None, length: int = LENGTH):
    sizes = {"max_seq_length": length, "max_predictions_per_seq": LIMIT, "do_eval": True}
    paths = {"input_file": str(pattern).split(","), "bert_config_file": "", "output_dir": "", "vocab_file": vocab_file}
    options = PretrainingOptions(**paths, **sizes)
    return RunRecords(options, tiny_config(), replicas=1).training(options.phases[0])


def read_rows(paths: list[str], count: int, skipped: int = 0) -> np.ndarray:
    """Returns the ids of the next records. They are read in batches of six for speed."""
    batches = RecordSource(paths, UNMASKED).training_batches(6, 3, skipped).take(-(-count // 6))
    return np.concatenate([batch["input_ids"] for batch in batches.as_numpy_iterator()])[:count]


def test_the_pipeline_can_start_at_any_step_of_the_same_sequence(tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW", 8)
    counts, total = [3, 8, 1, 6, 4], 22
    paths = write_records(tmp_path, counts, compress=True)
    whole = read_rows(paths, 3 * total)
    for start in (0, total, 2 * total):  # each epoch contains every record once
        assert len(np.unique(whole[start : start + total], axis=0)) == total
    places = [(path, number) for path, count in zip(paths, counts, strict=True) for number in range(count)]
    ids = dict(zip(places, parse_records(*paths)["input_ids"].numpy(), strict=True))
    np.testing.assert_array_equal(read_rows(paths, 2 * total + 1, total - 1), whole[total - 1 :])
    for skipped in (8, total + 9):
        locations = RecordSource(paths, UNMASKED).locate_records(3, skipped, 3 * total - skipped)
        np.testing.assert_array_equal([ids[location] for location in locations], whole[skipped:])


def test_four_files_at_a_time_contribute_one_record_each_in_turn(tmp_path, monkeypatch):
    # A run that is resumed with another value would not continue exactly.
    assert input_pipeline._WINDOW == input_pipeline._PACKING_SAMPLE == 10_000
    monkeypatch.setattr(input_pipeline, "_WINDOW", 1)  # nothing is shuffled but the files
    counts = [3, 1, 5, 4, 2, 3]
    paths = write_records(tmp_path, counts)
    locations = RecordSource(paths, UNMASKED).locate_records(3, 0, sum(counts))
    files_in_order = list(dict.fromkeys(path for path, _ in locations))
    expected = []
    for group in (files_in_order[:4], files_in_order[4:]):
        rounds = itertools.product(range(max(counts)), group)
        expected += [(path, number) for number, path in rounds if number < counts[paths.index(path)]]
    assert locations == expected


def test_packing_is_chosen_by_a_sample_of_the_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_PACKING_SAMPLE", 20)
    source = RecordSource(write_records(tmp_path, [40]), UNMASKED, masking())
    batches = source.training_batches(8, 3)
    options = batches.options()
    assert (options.autotune.enabled, options.experimental_distribute.auto_shard_policy.name) == (False, "DATA")
    assert (batches.cardinality(), batches.element_spec["input_ids"].shape) == (tf.data.INFINITE_CARDINALITY, (8, 16))
    monkeypatch.setattr(input_pipeline, "choose_packing", lambda *given: given)
    rows = list(map(count_rows, batches.take(3)))
    assert source.choose_packing(8, 3, 2, 1) == (rows, 8, 2, 1)


def test_damaged_records_are_left_out_wherever_reading_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW", 4)
    paths = write_records(tmp_path, [9, 4, 6])
    readable = [[(0, 2), (3, 1), (5, 4)], [], [(1, 5)]]
    source = RecordSource(paths, UNMASKED, readable=readable)
    left = [0, 1, 3, 5, 6, 7, 8, *range(14, 19)]  # among the records of all files
    whole = source.locate_records(3, 0, 24)
    places = [(path, number) for path, count in zip(paths, (9, 4, 6), strict=True) for number in range(count)]
    assert sorted(whole[:12]) == sorted(whole[12:]) == [places[number] for number in left]
    for skipped in (10, 17):
        assert source.locate_records(3, skipped, 24 - skipped) == whole[skipped:]
    (batch,) = source.evaluation_batches(12).as_numpy_iterator()
    np.testing.assert_array_equal(batch["input_ids"], parse_records(*paths)["input_ids"].numpy()[left])


@pytest.mark.parametrize(("counts", "window"), [([12], 12), ([1] * 12, 1)])  # the order of records, or of files
def test_the_order_depends_on_the_epoch_and_the_seed(counts, window, tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW", window)
    source = RecordSource(write_records(tmp_path, counts), UNMASKED)
    three, other = source.locate_records(3, 0, 36), source.locate_records(4, 0, 12)
    orders = [tuple(three[start : start + 12]) for start in (0, 12, 24)] + [tuple(other)]
    assert (len(set(orders)), len({tuple(sorted(order)) for order in orders})) == (4, 1)


@pytest.mark.parametrize("whole_words", [False, True])
def test_dynamic_masks_obey_the_rules_of_masked_records(tmp_path, whole_words):
    """Compares no distributions: tests/data_gen/rules/test_masking_parity.py does."""
    paths = write_records(tmp_path, [400])
    batch = next(RecordSource(paths, UNMASKED, masking(whole_words)).evaluation_batches(400).as_numpy_iterator())
    assert validation.find_first_violation(batch, None) is None
    ids, used = parse_records(*paths)["input_ids"].numpy(), batch["masked_lm_weights"] > 0
    np.testing.assert_array_equal(record_codec.restore_masked_ids(batch), ids)
    budget = np.clip(np.rint(batch["input_mask"].sum(axis=1) * 0.3), 1, LIMIT).astype(int)
    if not whole_words:
        np.testing.assert_array_equal(used.sum(axis=1), budget)
    for row in range(400 if whole_words else 0):
        text = np.flatnonzero(batches.is_text(batch)[row])
        begins = [not WORDS[number].startswith("##") for number in ids[row, text]]
        chosen = {*batch["masked_lm_positions"][row, used[row]].tolist()}
        words = [set(word.tolist()) for word in np.split(text, np.flatnonzero(begins)) if len(word)]
        assert all(word <= chosen or not word & chosen for word in words), "a word is hidden in part"
        # Every word that was not masked would have exceeded the budget.
        assert 0 <= budget[row] - len(chosen) < min((len(word) for word in words if not word & chosen), default=LENGTH)


def test_dynamic_masks_change_only_with_the_epoch_and_the_seed(tmp_path):
    paths = write_records(tmp_path, [20, 12])

    def epochs(batch_size: int, skipped: int = 0, seed: int = 7) -> dict[bytes, list[bytes]]:
        """Maps the unmasked tokens of each record to its masked versions, one per epoch."""
        data = RecordSource(paths, UNMASKED, masking()).training_batches(batch_size, seed, skipped).as_numpy_iterator()
        found: dict[bytes, list[bytes]] = {}
        for batch in itertools.islice(data, (96 - skipped) // batch_size):
            for original, row in zip(record_codec.restore_masked_ids(batch), batch["input_ids"], strict=True):
                found.setdefault(original.tobytes(), []).append(row.tobytes())
        return found

    by_eight = epochs(8)
    assert by_eight == epochs(4) != epochs(8, seed=8)
    assert len(by_eight) == 32
    assert sum(masks[0] != masks[1] for masks in by_eight.values()) > 28
    assert epochs(8, skipped=64) == {key: masks[2:] for key, masks in by_eight.items()}


def test_masks_are_the_same_in_every_release_and_differ_by_seed_epoch_and_record():
    numbers = itertools.product((0, 1, 12345), (0, 1, 2), (0, 1, 1 << 40))
    keys = {int(make_record_keys(seed, *tf.constant([[epoch], [n]], tf.int64))[0]) for seed, epoch, n in numbers}
    assert len(keys) == 27
    assert 4129026562748442328 in keys  # of seed 12345, epoch 2 and record 2 ** 40
    record = {"input_ids": tf.range(LENGTH)[None], "input_mask": tf.ones([1, LENGTH], tf.int32)}
    masked = masking()(record, tf.constant([24], tf.int64))["input_ids"].numpy()[0].tolist()
    assert masked == [0, 1, 2, 3, 4, 21, 6, 7, 8, 4, 10, 11, 4, 13, 14, 15]  # 5 is replaced at random, 9 and 12 hidden


def test_evaluation_reads_each_record_once_with_fixed_masks(tmp_path):
    paths = write_records(tmp_path, [7, 3])
    # The masks of seed 0 and epoch 0 must never change.
    record_ids = tf.constant([*range(7), *range(2**40, 2**40 + 3)], tf.int64)
    keys, records = make_record_keys(0, tf.zeros([10], tf.int64), record_ids), parse_records(*paths)
    for mask, expected in ((None, records), (masking(), masking()(records, keys))):
        batches = list(RecordSource(paths, UNMASKED, mask).evaluation_batches(4).as_numpy_iterator())
        assert len(batches) == 3
        for name, values in expected.items():
            found = np.concatenate([batch[name] for batch in batches])
            assert found.shape == (12, *values.shape[1:])
            np.testing.assert_array_equal(found[:10], values)
            assert not found[10:].any()  # padding of the last batch


def test_records_without_masks_and_without_their_manifest_are_recognised(tmp_path):
    (path,) = write_records(tmp_path, [3])
    assert_rejected((path, "--masking=dynamic", "*.manifest.json", tmp_path), find_records, path, None)
    assert_rejected((path, "record 0", "input_ids", LENGTH, 8), find_records, path, None, 8)


def test_missing_and_empty_shards_are_distinguished_by_the_manifest(tmp_path, vocab_file, capsys):
    paths = [*write_records(tmp_path, [3, 4]), write_text(tmp_path / "2.tfrecord", "")]
    write_manifest(tmp_path / "out", dict(zip(paths, (3, 4, 0), strict=True)), vocab_file, **DYNAMIC)
    assert find_records(tmp_path / "*.tfrecord", vocab_file).paths == paths[:2]  # the third declares 0 records
    assert_mentions(capsys.readouterr().out, paths[2])
    size = files.size(paths[1])
    write_text(pathlib.Path(paths[1]), "")
    described = tmp_path / "out.manifest.json"
    assert_rejected((paths[1], 0, described, size), find_records, tmp_path / "*.tfrecord", vocab_file)
    pathlib.Path(paths[1]).unlink()
    names = ("--input_file", paths[1], "missing", described)
    for pattern in ("*.tfrecord", "[01].tfrecord", "?.tf*"):
        assert_rejected(names, find_records, tmp_path / pattern, vocab_file)
    patterns = [f"{tmp_path.parent}/*.tfrecord", paths[0]]  # The * matches no folder.
    assert not manifest.find_missing_files(patterns, paths[:1], manifest.read_manifests(paths[:1]))
    for pattern in ("0.tfrecord", "[02].tfrecord"):  # other files are not checked
        assert find_records(tmp_path / pattern, vocab_file).paths == paths[:1]


def test_empty_files_are_listed_up_to_ten(tmp_path, capsys):
    paths = [write_text(tmp_path / f"{number}.tfrecord", "record" * (number == 50)) for number in range(100)]
    assert record_files._remove_empty_files(paths, {}) == [paths[50]]
    assert_mentions(capsys.readouterr().out, paths[9], 89)
    assert_rejected((paths[9], 40, "make-records"), record_files._remove_empty_files, paths[:50], {})


DYNAMIC = {"masking": "dynamic", "masked_lm_prob": 0.15, "do_whole_word_mask": False}


def test_records_are_skipped_by_the_counts_in_the_manifest(tmp_path, monkeypatch, vocab_file):
    folder = tmp_path / "run[1]"  # special characters of patterns
    folder.mkdir()
    paths = write_records(folder, [7, 5])
    write_manifest(folder / "out", dict(zip(paths, (7, 5), strict=True)), vocab_file, **DYNAMIC)
    assert find_records(f"{paths[0]},{paths[1]},{paths[0]}", vocab_file).num_records == 19
    records = find_records(",".join(paths), vocab_file)
    monkeypatch.setattr(record_reader, "count_records", lambda path: pytest.fail(f"{path} is counted"))
    *_, fourth = records.training_batches(6, seed=1).take(4).as_numpy_iterator()
    (found,) = records.training_batches(6, seed=1, skipped_records=18).take(1).as_numpy_iterator()
    np.testing.assert_array_equal(found["input_ids"], fourth["input_ids"])


def test_only_the_size_of_files_with_a_manifest_is_read(tmp_path, monkeypatch, vocab_file):
    content = pathlib.Path(write_records(tmp_path, [3])[0]).read_bytes()
    paths = [write_text(tmp_path / f"{number}.tfrecord", content) for number in range(40)]
    write_manifest(tmp_path / "out", dict.fromkeys(paths, 3), vocab_file, **DYNAMIC)
    calls, make_constant = [], tf.constant

    def note(name: str, called):
        return lambda path, *rest: (calls.append((name, path.removeprefix(str(tmp_path)))), called(path, *rest))[1]

    def constant(value, *rest, **more):
        if isinstance(value, list) and len(value) == len(paths):
            calls.append(("constant", tf.executing_eagerly()))
        return make_constant(value, *rest, **more)

    for name in ("open_bytes", "size"):
        monkeypatch.setattr(files, name, note(name, getattr(files, name)))
    monkeypatch.setattr(tf, "constant", constant)
    records = find_records(tmp_path / "*.tfrecord", vocab_file)
    assert records.fingerprint
    assert len(records.identity()) == 40
    next(iter(records.training_batches(6, seed=1)))
    count = collections.Counter((name, pathlib.Path(path).suffix) for name, path in calls if name != "constant")
    # The length of each file is asked for once, and again for those whose records are checked to their end.
    assert count["size", ".tfrecord"] == 40 + record_files._FILES_CHECKED
    # Opened to detect the compression or to check records.
    assert count["open_bytes", ".tfrecord"] == 1 + record_files._FILES_CHECKED
    assert calls.count(("open_bytes", "/out.manifest.json")) == 1
    assert {value for name, value in calls if name == "constant"} == {True}  # file names are not stored in the graph


def test_records_of_different_kinds_are_rejected_and_masks_follow_the_manifest(tmp_path, vocab_file):
    for path, rates in zip(write_records(tmp_path, [4, 4]), ("0/100/0", "0/0/100"), strict=True):
        flags = {**DYNAMIC, "masking_rates": rates, "sentence_objective": "none"}
        write_manifest(pathlib.Path(path).with_suffix(""), {path: 4}, vocab_file, **flags)
    names = ("masked_lm_prob", "do_whole_word_mask", "masking_rates", "0/0/100", "0/100/0")
    assert_rejected(names, find_records, tmp_path / "*.tfrecord", vocab_file)
    batch = next(find_records(tmp_path / "0.tfrecord", vocab_file).evaluation_batches(4).as_numpy_iterator())
    assert batch["masked_lm_weights"].sum() >= 4
    np.testing.assert_array_equal(batch["input_ids"], record_codec.restore_masked_ids(batch))  # every token is kept


@pytest.mark.slow
def test_tf_data_autotuning_is_disabled(tmp_path, monkeypatch):
    shards = write_records(tmp_path, [7, 8, 9])
    tuned, start = [], tf.data.Dataset.__iter__

    def note(data):
        tuned.append(data.options().autotune.enabled)
        return start(data)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", note)
    source = RecordSource(shards, UNMASKED, masking())
    next(iter(source.training_batches(4, 1)))
    next(iter(source.evaluation_batches(4)))
    source.locate_records(5, 0, 3)
    source.choose_packing(4, 1, replicas=1, micro_batches=1)
    assert len(list(record_reader.read_file(shards[0]))) == 7
    record_damage.find_readable_ranges(shards, UNMASKED)
    flip_bits(shards[1], -30)
    zipped = write_text(tmp_path / "damaged.tfrecord.gz", gzip.compress(pathlib.Path(shards[1]).read_bytes()))
    assert_rejected((zipped, "record 7"), list, record_reader.read_file(zipped))
    list(batches.read_batches(shards[0], UNMASKED, lambda size: None))
    assert len(tuned) >= 10
    assert set(tuned) == {False}


def test_every_token_is_predicted_from_the_previous_tokens(tmp_path):
    paths = write_records(tmp_path, [40])
    source = RecordSource(paths, UNMASKED, add_next_token_targets)
    batch = next(source.evaluation_batches(50).as_numpy_iterator())  # ten rows of padding
    ids, mask, segments = (batch[name] for name in ("input_ids", "input_mask", "segment_ids"))
    np.testing.assert_array_equal(batch["masked_lm_positions"][:40], np.tile(range(LENGTH - 1), (40, 1)))
    # A token is text if the next one belongs to the same segment. [SEP] and padding are not text.
    text = np.pad((mask[:, 2:] > 0) & (segments[:, 2:] == segments[:, 1:-1]), ((0, 0), (0, 1)))
    np.testing.assert_array_equal(batch["masked_lm_weights"], text)
    np.testing.assert_array_equal(batch["masked_lm_ids"], ids[:, 1:] * text)
    assert text.sum() > 40 * 5
    # The records may be masked.
    plain, keys = parse_records(*paths), tf.range(40, dtype=tf.int64)
    masked = masking()(plain, keys)
    assert (masked["input_ids"] != plain["input_ids"]).numpy().any()
    for features in (masked, plain):
        for name, values in add_next_token_targets(features, keys).items():
            np.testing.assert_array_equal(values, batch[name][:40])
    assert not ids[40:].any()
