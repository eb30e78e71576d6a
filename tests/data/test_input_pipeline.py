"""Batches of records: their order, starting at any position in it, and dynamic masking."""

import gzip
import itertools
import os
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from data_gen.inspection.batches import read_batches
from data_gen.pipelines import writer
from official_bert.data import input_pipeline, manifest, record_codec, record_damage, record_reader, record_schema
from official_bert.data.dynamic_masking import DynamicMasking, make_record_keys
from official_bert.data.input_pipeline import evaluation_batches, training_batches
from official_bert.errors import UserError
from official_bert.pretraining import record_files
from official_bert.pretraining.record_files import RecordFiles
from official_bert.utils import files
from tests.conftest import WORDS, slow_after
from tests.data.record_samples import ALL, SCHEMA, first_ids
from tests.make import assert_refused, refusal, tiny_config, write_text

VOCAB = {word: number for number, word in enumerate(WORDS)}
LENGTH, LIMIT = 16, 4
MASKED = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
UNMASKED = record_schema.unmasked_schema(LENGTH, len(WORDS), 2)
CONFIG = tiny_config()


def write_records(folder: pathlib.Path, counts: list[int], compress: bool = False) -> list[str]:
    """Writes files of unmasked records whose tokens are all different."""
    rng = np.random.default_rng(1)
    paths = []
    for number, count in enumerate(counts):
        path = folder / f"{number}.tfrecord"
        length = rng.integers(8, LENGTH + 1, (count, 1))
        first = rng.integers(3, 5, (count, 1))
        position = np.arange(LENGTH)[None, :]
        ids = np.where(position < length, rng.integers(5, len(WORDS), (count, LENGTH)), 0)
        ids[:, 0] = VOCAB["[CLS]"]
        ids[(position == first) | (position == length - 1)] = VOCAB["[SEP]"]
        batch = {
            "input_ids": ids,
            "input_mask": position < length,
            "segment_ids": (position > first) & (position < length),
            "next_sentence_labels": rng.integers(0, 2, (count, 1)),
        }
        with writer.open_shard(str(path), compress) as shard:
            shard.write(writer.frame_records(record_codec.encode(batch, UNMASKED)))
        paths.append(str(path))
    return paths


def record_calls(function: Callable[..., object], calls: list[str]) -> Callable[..., object]:
    """Wraps a function so that it appends the first argument of each call to `calls`."""

    def noting(path: str, *arguments: object) -> object:
        calls.append(path)
        return function(path, *arguments)

    return noting


def rows(data: tf.data.Dataset, batches: int) -> np.ndarray:
    return np.concatenate([batch["input_ids"].numpy() for batch in data.take(batches)])


def find_records(paths: list[str], vocab_file: str | None, length: int = LENGTH) -> RecordFiles:
    limits = {"max_seq_length": length, "max_predictions_per_seq": LIMIT}
    return RecordFiles.find(paths, "input_file", config=CONFIG, vocab_file=vocab_file, **limits)


def write_manifest(path: str, counts: dict[str, int], vocab_file: str, **flags: object) -> None:
    """Writes a manifest for files of unmasked records, given the number of records in each."""
    flags = {"masking": "dynamic", "masked_lm_prob": 0.15, "do_whole_word_mask": False, **flags}
    shards = [
        manifest.Shard(os.path.basename(name), count, files.size(name), files.sha256(name))
        for name, count in counts.items()
    ]
    source = {"flags": flags, "vocabulary": files.sha256(vocab_file)}
    manifest.write_manifests(list(counts), path, manifest.Manifest(source, shards, {}))


@pytest.mark.parametrize(
    ("counts", "compress"),
    slow_after(1, [([7, 2, 9], True), ([7, 30, 1, 12, 25, 3], False), ([50], False)]),
    ids=str,
)
def test_starting_anywhere_gives_the_rest_of_the_same_sequence(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, counts: list[int], compress: bool
):
    monkeypatch.setattr(input_pipeline, "_WINDOW", 8)
    paths = write_records(tmp_path, counts, compress)
    total = sum(counts)

    def read(count: int, skipped: int) -> np.ndarray:
        """Returns the next `count` rows, read in batches of 6 for speed and trimmed to `count`."""
        return rows(input_pipeline.training_batches(paths, 6, UNMASKED, 3, skipped), -(-count // 6))[:count]

    whole = read(3 * total, 0)
    for epoch in range(3):
        # Each epoch contains every record once, in a different order.
        assert len(np.unique(whole[epoch * total : (epoch + 1) * total], axis=0)) == total
    assert (whole[:total] != whole[total : 2 * total]).any()
    for skipped in (8, total // 2, total - 1, total + 9):
        np.testing.assert_array_equal(read(3 * total - skipped, skipped), whole[skipped:], err_msg=f"skipped {skipped}")


def test_locations_name_the_records_of_a_batch(tmp_path: pathlib.Path):
    paths = write_records(tmp_path, [7, 30, 12])
    held = {
        (path, number): record_codec.parse(tf.constant([record]), UNMASKED)["input_ids"].numpy()[0]
        for path in paths
        for number, record in enumerate(record_reader.read_file(path))
    }
    batch = rows(input_pipeline.training_batches(paths, 8, UNMASKED, 5, skipped_records=40), 2)
    locations = input_pipeline.record_locations(paths, 5, 40, 16)
    np.testing.assert_array_equal([held[location] for location in locations], batch)


def masking(whole_words: bool = False) -> DynamicMasking:
    return DynamicMasking(VOCAB, LIMIT, 0.3, whole_words)


@pytest.mark.parametrize("whole_words", [False, True])
def test_dynamic_masks_are_those_of_masked_records(tmp_path: pathlib.Path, whole_words: bool):
    paths = write_records(tmp_path, [400])
    plain = next(iter(input_pipeline.evaluation_batches(paths, 400, UNMASKED)))
    plain_ids = plain["input_ids"].numpy()
    kinds: dict[str, int] = {"mask": 0, "kept": 0, "other": 0}
    position_counts = np.zeros(LENGTH)
    word_keys = np.arange(400, dtype=np.int64)
    for epoch in range(10):
        keys = make_record_keys(1, tf.fill([400], tf.constant(epoch, tf.int64)), tf.constant(word_keys))
        batch = {name: value.numpy() for name, value in masking(whole_words).mask(plain, keys).items()}
        values = [batch[name] for name in (*MASKED, "input_mask")]
        for ids, row, positions, labels, weights, mask in zip(plain_ids, *values, strict=True):
            count = int(weights.sum())
            budget = min(LIMIT, max(1, round(float(mask.sum()) * 0.3)))
            assert count <= budget if whole_words else count == budget
            assert (weights == (np.arange(LIMIT) < count)).all()
            chosen = positions[:count]
            assert (np.diff(chosen) > 0).all()
            assert (labels[:count] == ids[chosen]).all()
            assert not positions[count:].any()
            assert not labels[count:].any()
            assert not np.isin(ids[chosen], [VOCAB["[CLS]"], VOCAB["[SEP]"], VOCAB["[PAD]"]]).any()
            untouched = np.ones(LENGTH, bool)
            untouched[chosen] = False
            assert (row[untouched] == ids[untouched]).all()
            for position in chosen:
                kind = "mask" if row[position] == VOCAB["[MASK]"] else "kept" if row[position] == ids[position] else ""
                kinds[kind or "other"] += 1
            position_counts[chosen] += 1
            if whole_words:
                assert_whole_words(ids, mask, set(chosen.tolist()), budget)
    total = sum(kinds.values())
    # In 2 of 83 cases a random piece is [MASK] or the original one.
    assert kinds["mask"] / total == pytest.approx(0.8 + 0.1 / len(WORDS), abs=0.016)
    assert kinds["kept"] / total == pytest.approx(0.1 + 0.1 / len(WORDS), abs=0.016)
    # Positions that hold text in every record are chosen equally often. (The choice also depends on word length.)
    assert whole_words or position_counts[[1, 2, 5, 6]].std() / position_counts[[1, 2, 5, 6]].mean() < 0.1


def assert_whole_words(ids: np.ndarray, mask: np.ndarray, chosen: set[int], budget: int) -> None:
    words: list[list[int]] = []
    for position in np.flatnonzero(mask):
        if ids[position] in (VOCAB["[CLS]"], VOCAB["[SEP]"]):
            continue
        if words and WORDS[ids[position]].startswith("##"):
            words[-1].append(position)
        else:
            words.append([position])
    taken = 0
    for word in words:
        assert chosen.isdisjoint(word) or chosen.issuperset(word), "a word is hidden in part"
        taken += len(word) if chosen.issuperset(word) else 0
    # Every word that was not masked would have exceeded the budget.
    assert all(len(word) > budget - taken for word in words if chosen.isdisjoint(word))


def test_dynamic_masks_change_with_the_epoch_and_with_nothing_else(tmp_path: pathlib.Path):
    paths = write_records(tmp_path, [20, 12])
    schema = UNMASKED

    def epochs(batch_size: int, skipped: int = 0) -> dict[str, list[list[int]]]:
        """Maps the unmasked tokens of each record to its masked versions, one per epoch."""
        data = input_pipeline.training_batches(paths, batch_size, schema, 7, skipped, masking=masking())
        found: dict[str, list[list[int]]] = {}
        for batch in itertools.islice(data, (96 - skipped) // batch_size):
            for row, positions, labels, weights in zip(*(batch[name].numpy() for name in MASKED), strict=True):
                original = row.copy()
                original[positions[weights > 0]] = labels[weights > 0]
                found.setdefault(str(original), []).append(row.tolist())
        return found

    by_eight, by_four = epochs(8), epochs(4)
    assert by_eight == by_four
    assert len(by_eight) == 32
    assert sum(masks[0] != masks[1] for masks in by_eight.values()) > 28
    later = epochs(8, skipped=64)
    assert all(masks[-1] == later[key][0] for key, masks in by_eight.items())


def test_evaluation_hides_the_same_tokens_each_time(tmp_path: pathlib.Path):
    paths = write_records(tmp_path, [10])
    first, second = (
        list(input_pipeline.evaluation_batches(paths, 4, UNMASKED, masking=masking()).as_numpy_iterator())
        for _ in range(2)
    )
    assert len(first) == 3
    for one, other in zip(first, second, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert first[2]["masked_lm_weights"][2:].sum() == 0  # padding added by the batch
    assert set(first[0]) == set(record_schema.pretraining_schema(LENGTH, LIMIT))


def test_records_without_masks_and_without_their_manifest_are_recognised(tmp_path: pathlib.Path):
    paths = write_records(tmp_path, [3])
    with pytest.raises(UserError, match=r"0.tfrecord was written without masks .* Copy the \*.manifest.json of its"):
        find_records(paths, None)
    assert f"input_ids has {LENGTH} values; expected 8" in refusal(find_records, paths, None, 8)


def test_the_manifest_decides_whether_a_shard_is_missing_or_empty(
    tmp_path: pathlib.Path, vocab_file: str, capsys: pytest.CaptureFixture[str]
):
    paths = [*write_records(tmp_path, [3, 4]), write_text(tmp_path / "2.tfrecord", "")]
    write_manifest(str(tmp_path / "out"), dict(zip(paths, (3, 4, 0), strict=True)), vocab_file)

    def checked(pattern: str) -> RecordFiles:
        return find_records([str(tmp_path / pattern)], vocab_file)

    assert checked("*.tfrecord").paths == paths[:2]  # the third file is empty, and its manifest declares 0 records
    assert "skipped empty files" in capsys.readouterr().out
    content = pathlib.Path(paths[1]).read_bytes()
    pathlib.Path(paths[1]).write_bytes(b"")
    assert_refused(f"1.tfrecord has 0 bytes, but .*out.manifest.json .*{len(content)}", checked, "*.tfrecord")
    pathlib.Path(paths[1]).unlink()
    for pattern in ("*.tfrecord", "[01].tfrecord", "?.tf*"):
        assert_refused("--input_file: .*1.tfrecord is missing, but .*out.manifest.json lists it", checked, pattern)
    assert checked("0.tfrecord").paths == checked("[02].tfrecord").paths == paths[:1]  # other files are not checked


def test_of_many_empty_files_the_first_are_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    paths = [write_text(tmp_path / f"{number}.tfrecord", "") for number in range(1000)]
    pathlib.Path(paths[500]).write_bytes(b"record")
    assert record_files._remove_empty_files(paths, {}) == [paths[500]]
    assert f"{paths[9]} and 989 more\n" in capsys.readouterr().out
    with pytest.raises(UserError, match=f"{paths[9]} and 90 more: no records. Write records"):
        record_files._remove_empty_files(paths[:100], {})


def test_many_files_with_a_manifest_are_asked_for_their_length_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, vocab_file: str
):
    content = pathlib.Path(write_records(tmp_path, [3])[0]).read_bytes()
    paths = [write_text(tmp_path / f"{number}.tfrecord", content) for number in range(40)]
    flags = {"max_seq_length": LENGTH, "masked_lm_prob": 0.2}
    write_manifest(str(tmp_path / "out"), dict.fromkeys(paths, 3), vocab_file, **flags)
    asked: dict[str, list[str]] = {"open_bytes": [], "size": []}
    for name, called in asked.items():
        monkeypatch.setattr(files, name, record_calls(getattr(files, name), called))
    constants: list[bool] = []
    make_constant = tf.constant

    def constant(value: object, *arguments: object, **more: object) -> tf.Tensor:
        if isinstance(value, list) and len(value) == len(paths):
            constants.append(tf.executing_eagerly())
        return make_constant(value, *arguments, **more)

    monkeypatch.setattr(tf, "constant", constant)
    records = find_records([str(tmp_path / "*.tfrecord")], vocab_file)
    assert records.fingerprint
    assert len(records.identity()) == 40
    next(iter(records.training(6, seed=1, skipped_records=0)))
    shards = [path for path in asked["size"] if path.endswith(".tfrecord")]
    assert len(shards) == 40
    opened = [path for path in asked["open_bytes"] if path.endswith(".tfrecord")]
    assert len(opened) == 1 + record_files._FILES_CHECKED  # opened to detect the compression or check records
    assert asked["open_bytes"].count(str(tmp_path / "out.manifest.json")) == 1
    assert constants
    assert all(constants)  # the file names are not stored in the graph


def test_records_of_several_kinds_are_not_mixed_and_masks_are_those_of_the_manifest(
    tmp_path: pathlib.Path, vocab_file: str
):
    paths = write_records(tmp_path, [3, 4])

    def open_records(*flags: dict[str, object]) -> RecordFiles:
        for path, count, changes in zip(paths, (3, 4), flags, strict=True):
            write_manifest(path.removesuffix(".tfrecord"), {path: count}, vocab_file, **changes)
        return find_records(paths, vocab_file)

    message = "different values of masked_lm_prob, do_whole_word_mask and masking_rates: .*Pass records of one kind"
    assert_refused(message, open_records, {}, {"masking_rates": "0/0/100"})
    records = open_records(*[{"masking_rates": "0/100/0", "sentence_objective": "none"}] * 2)
    batch = next(iter(records.evaluation(7)))
    predicted = tf.gather(batch["input_ids"], batch["masked_lm_positions"], batch_dims=1)
    chosen = batch["masked_lm_weights"] > 0
    assert int(tf.reduce_sum(tf.cast(chosen, tf.int32))) > 10
    assert bool(tf.reduce_all((predicted == batch["masked_lm_ids"]) | ~chosen))  # every chosen token is kept


def test_every_epoch_has_every_record_once_in_another_order(shards: list[str]):
    batches = first_ids(training_batches(shards, 5, SCHEMA, seed=1), 27)  # three epochs of 45
    ids = [number for batch in batches for number in batch]
    epochs = [ids[start : start + 45] for start in (0, 45, 90)]
    assert all(sorted(epoch) == ALL for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs[0] != ALL


def test_every_epoch_shuffles_the_records_of_a_single_file_again(shards: list[str]):
    epochs = first_ids(training_batches(shards[4:], 11, SCHEMA, seed=1), 3)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all(sorted(epoch) == list(range(40, 51)) for epoch in epochs)


def test_order_depends_on_the_seed_alone(shards: list[str]):
    first, again, other = (first_ids(training_batches(shards, 5, SCHEMA, seed), 9) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*other))


@pytest.mark.slow
def test_skipping_goes_on_where_another_run_stopped(shards: list[str]):
    whole = first_ids(training_batches(shards, 5, SCHEMA, seed=3), 30)
    for batches in (0, 1, 8, 9, 13, 25):
        rest = first_ids(training_batches(shards, 5, SCHEMA, seed=3, skipped_records=5 * batches), 30 - batches)
        assert rest == whole[batches:], batches


def test_evaluation_reads_each_record_once_and_fills_the_last_batch_with_zeros(shards: list[str]):
    batches = list(evaluation_batches(shards, 8, SCHEMA))
    assert all(batch[name].shape == (8, *SCHEMA[name].shape) for batch in batches for name in SCHEMA)
    real = [batch["input_ids"][row, 0].numpy() for batch in batches for row in range(8) if batch["input_mask"][row, 0]]
    assert real == ALL
    assert sum(int(tf.reduce_sum(batch["masked_lm_weights"])) for batch in batches) == len(ALL)


@pytest.mark.slow
def test_no_thread_tunes_the_data_by_the_time_of_day(
    shards: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    tuned, start = [], tf.data.Dataset.__iter__

    def noting(data: tf.data.Dataset):
        tuned.append(data.options().autotune.enabled)
        return start(data)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", noting)
    next(iter(training_batches(shards, 4, SCHEMA, 1)))
    next(iter(evaluation_batches(shards, 4, SCHEMA)))
    input_pipeline.record_locations(shards, 5, 0, 3)
    input_pipeline.estimate_packing(shards, 4, SCHEMA, 1, None, None, replicas=1, micro_batches=1)
    assert len(list(record_reader.read_file(shards[0]))) == 7
    record_damage.find_readable_ranges(shards, SCHEMA)
    damaged = bytearray(pathlib.Path(shards[0]).read_bytes())
    damaged[-30] ^= 1
    zipped = write_text(tmp_path / "damaged.tfrecord.gz", gzip.compress(damaged))
    assert_refused("record 6", list, record_reader.read_file(zipped))
    list(read_batches(shards[0], SCHEMA, lambda size: None))
    assert len(tuned) >= 10
    assert not any(each is not False for each in tuned)
