"""The fast algorithm: same distributions as the reference algorithm, and same bytes however a run is interrupted."""

import contextlib
import errno
import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from data_gen.pipelines import fast, one_machine, run_plan, worker, worker_pool
from official_bert.data import record_damage, record_schema
from official_bert.errors import UserError
from official_bert.tokenization.exact import SPECIAL_TOKENS, load_vocab
from tests.conftest import ROOT, slow_after
from tests.data_gen.distributions import assert_alike, histogram
from tests.data_gen.samples import (
    LENGTH,
    PREDICTIONS,
    Corpus,
    contents,
    make_command,
    make_options,
    make_records,
    parsed,
    unmasked,
)
from tests.make import refusal, run_python, write_text


def test_bytes_are_the_same_for_any_number_of_workers(
    corpus: Corpus, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    made = []
    for workers in (1, 2, 4):
        # Several workers encode one file together only if it consists of many buckets.
        monkeypatch.setattr(run_plan, "_BUCKET_BYTES", 6e6 if workers == 1 else 10_000)
        make_records(corpus, tmp_path / str(workers), num_workers=workers)
        made.append(contents(tmp_path / str(workers)))
    assert made[0] == made[1] == made[2]
    shards = [f"out-{number:05}-of-00003.tfrecord" for number in range(3)]
    assert list(made[0]) == [*shards, "out.manifest.json"]
    other = make_options(corpus, tmp_path / "other", random_seed=1)
    one_machine.create_pretraining_data(other)
    assert contents(tmp_path / "other").keys() == made[0].keys()
    assert contents(tmp_path / "other") != made[0]


@pytest.mark.slow
@pytest.mark.core
def test_bytes_are_the_same_after_kills_at_random_moments(corpus: Corpus, tmp_path: pathlib.Path):
    small = {"dupe_factor": 20, "block_tokens": 1500}
    make_records(corpus, tmp_path / "straight", **small)
    options = make_options(corpus, tmp_path / "killed", **small)
    work = tmp_path / "killed" / "out.work"
    seed = time.time_ns()
    print(f"moments of the kills: random.Random({seed})")  # pytest shows this output if the test fails
    rng = random.Random(seed)
    found = []

    def entries() -> list[str]:  # of the work folder; os.walk skips entries that are removed meanwhile
        return [name for _, folders, files in os.walk(work) for name in (*folders, *files)]

    for _ in range(5):
        before = len(entries())
        command = [sys.executable, *make_command(options)]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            try:
                # Kill it at a random moment after it has made new progress.
                while process.poll() is None and len(entries()) <= before:
                    time.sleep(0.005)
                time.sleep(rng.uniform(0, 0.6))
            finally:
                with contextlib.suppress(ProcessLookupError):  # already ended
                    os.killpg(process.pid, signal.SIGKILL)  # the workers too
        found.append(sum(name.endswith(".json") for name in entries()) if work.exists() else None)
        if found[-1] is None:
            break
    assert found[0] is not None, "the first try ended before it could be killed"
    done = run_python(*make_command(options))
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight"), found


@pytest.mark.slow
def test_after_a_full_disk_the_same_command_continues(corpus: Corpus, tmp_path: pathlib.Path):
    make_records(corpus, tmp_path / "straight")
    options = make_options(corpus, tmp_path / "full")
    # Files may not grow beyond 100 kB, so that writing fails as on a full disk.
    limit = (100_000, 100_000)
    done = run_python(*make_command(options), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert done.returncode == 1
    assert "error: cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "full").glob("*.tfrecord*"))
    done = run_python(*make_command(options))
    assert done.returncode == 0, done.stderr
    assert "resuming the unfinished work" in done.stdout
    assert contents(tmp_path / "full") == contents(tmp_path / "straight")


@pytest.mark.slow
def test_worker_of_a_removed_run_does_not_write_into_the_next_run(
    corpus: Corpus, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    vocab = tmp_path / "other.txt"
    pieces = pathlib.Path(corpus[1]).read_text().splitlines()
    vocab.write_text("\n".join([*SPECIAL_TOKENS, *reversed([each for each in pieces if each not in SPECIAL_TOKENS])]))
    make_records((corpus[0], str(vocab)), tmp_path / "straight")
    do_all, orphans = worker_pool.WorkerPool.do_all, []

    def interrupted(self: worker_pool.WorkerPool, what: str, *rest: Any) -> Any:
        if what == "making instances":
            orphans.append(worker.Worker(self._folder))
            assert orphans[0]._layout
            assert orphans[0]._store
            raise UserError("killed")
        return do_all(self, what, *rest)

    def do_all_with_orphan(self: worker_pool.WorkerPool, what: str, *rest: Any) -> Any:
        if what == "making instances":
            orphans[0].do({"block": [0, 0]})
        return do_all(self, what, *rest)

    monkeypatch.setattr(worker_pool.WorkerPool, "do_all", interrupted)
    assert "killed" in refusal(make_records, corpus, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "out.work")
    monkeypatch.setattr(worker_pool.WorkerPool, "do_all", do_all_with_orphan)
    make_records((corpus[0], str(vocab)), tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "straight")


def test_temporary_files_of_a_killed_run_are_removed(corpus: Corpus, tmp_path: pathlib.Path):
    left = [tmp_path / "out-00001-of-00003.tfrecord.writing-0123456789ab", tmp_path / "mine.tfrecord.writing-0"]
    for path in left:
        path.write_text("half")
    make_records(corpus, tmp_path)
    assert [path.exists() for path in left] == [False, True]


def test_system_errors_are_explained():
    for error, message in (
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "cannot write in out.work: .* free some space and run the same",
        ),
        (
            OSError(errno.EACCES, "Permission denied"),
            "cannot work in out.work: .*Permission denied.* correct the error and",
        ),
    ):
        with pytest.raises(UserError, match=message), fast._explain_write_errors("out.work"):
            raise error


@pytest.mark.slow
def test_flag_recommended_by_a_text_error_helps(corpus: Corpus, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "latin1.txt", b"return the value\nthe \xe9 object\n")
    inputs = ([*corpus[0], path], corpus[1])
    with pytest.raises(UserError, match="latin1.txt, line 2: .* pass --drop_invalid_utf8"):
        make_records(inputs, tmp_path / "out", input_format="sentences")
    assert not list((tmp_path / "out").iterdir())
    options = make_options(inputs, tmp_path / "out", input_format="sentences", drop_invalid_utf8=True)
    assert one_machine.create_pretraining_data(options).instances


def test_gzip_and_shard_size_change_the_files_and_not_the_records(corpus: Corpus, tmp_path: pathlib.Path):
    make_records(corpus, tmp_path / "plain", num_shards=1)
    make_records(corpus, tmp_path / "zipped", num_shards=1, gzip=True)
    make_records(corpus, tmp_path / "sized", num_shards=1, shard_size_mb=1)
    plain = parsed(list((tmp_path / "plain").glob("*.tfrecord")))
    zipped = parsed(list((tmp_path / "zipped").glob("*.tfrecord")))
    shards = sorted((tmp_path / "sized").glob("*.tfrecord"))
    for name, values in plain.items():
        np.testing.assert_array_equal(zipped[name], values)
    assert len(shards) > 1
    assert all(0.5e6 < path.stat().st_size < 2e6 for path in shards)


def test_every_record_fits_the_schema(corpus: Corpus, tmp_path: pathlib.Path):
    for whole_words in (False, True):
        folder = tmp_path / str(whole_words)
        make_records(corpus, folder, do_whole_word_mask=whole_words)
        vocab = load_vocab(corpus[1])
        schema = record_schema.pretraining_schema(LENGTH, PREDICTIONS, len(vocab), 2)
        assert record_damage.describe_first_damage([str(path) for path in folder.glob("*.tfrecord")], schema) is None
        batch = parsed(sorted(folder.glob("*.tfrecord")))
        length = batch["input_mask"].sum(axis=1)
        count = batch["masked_lm_weights"].sum(axis=1)
        expected = np.minimum(PREDICTIONS, np.maximum(1, np.rint(length * 0.15)))
        assert (count <= expected).all() if whole_words else (count == expected).all()
        for row in range(0, len(length), 7):
            ids, positions = batch["input_ids"][row], batch["masked_lm_positions"][row]
            some = int(count[row])
            assert (np.diff(positions[:some]) > 0).all()
            assert not positions[some:].any()
            original = ids.copy()
            original[positions[:some]] = batch["masked_lm_ids"][row][:some]
            seps = np.flatnonzero(original == vocab["[SEP]"])
            assert original[0] == vocab["[CLS]"]
            assert len(seps) == 2
            assert seps[1] == length[row] - 1
            assert not set(positions[:some]) & {0, *seps}
            np.testing.assert_array_equal(
                batch["segment_ids"][row],
                [0] * (seps[0] + 1) + [1] * (seps[1] - seps[0]) + [0] * (LENGTH - length[row]),
            )


def test_records_are_shuffled_and_random_segments_come_from_the_whole_corpus(tmp_path: pathlib.Path):
    count, special = 200, len(SPECIAL_TOKENS)
    # Each document repeats one unique word, which identifies the source of each segment.
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *(f"w{number}" for number in range(count))]) + "\n")
    sentences = [" ".join([f"w{number}"] * 6) + "\n" for number in range(count)]
    (tmp_path / "text.txt").write_text("\n".join(sentence * 20 for sentence in sentences))
    options = make_options(
        ([str(tmp_path / "text.txt")], str(tmp_path / "vocab.txt")), tmp_path / "out", block_tokens=2000, dupe_factor=3,
        input_format="sentences",
    )  # fmt: skip
    one_machine.create_pretraining_data(options)
    batch = parsed(sorted((tmp_path / "out").glob("*.tfrecord")))
    ids = unmasked(batch)
    first = ids[:, 1] - special
    second = ids[np.arange(len(ids)), batch["input_mask"].sum(axis=1) - 2] - special
    blocks = count * 6 * 20 / 2000
    assert blocks == 12

    def correlation(one: np.ndarray, two: np.ndarray) -> float:
        return abs(np.corrcoef(one, two)[0, 1]) * math.sqrt(len(one))

    # The documents are in order in the text, so ranks are the numbers themselves. The limit is five deviations.
    assert correlation(np.arange(len(first)), first) < 5
    assert correlation(first[1:], first[:-1]) < 5
    is_random = batch["next_sentence_labels"][:, 0] == 1
    assert (first[~is_random] == second[~is_random]).all()
    first, second = first[is_random], second[is_random]
    assert len(first) > 500
    assert (first != second).all()
    # All other documents are equally likely, so there is a slight tendency away from the document's own number.
    assert correlation(first, second) < 5
    assert_alike(histogram(second // 20, 9), histogram(np.arange(count) // 20, 9), "documents of random segments")


def test_each_pass_makes_different_segments_and_masks(corpus: Corpus, tmp_path: pathlib.Path):
    make_records(corpus, tmp_path, short_seq_prob=0.0)
    batch = parsed(sorted(tmp_path.glob("*.tfrecord")))
    # If the two passes were equal, each record would occur twice.
    cuts = len(np.unique(unmasked(batch), axis=0)) / len(batch["input_ids"])
    masks = len(np.unique(np.hstack([batch["masked_lm_positions"], unmasked(batch)]), axis=0)) / len(batch["input_ids"])
    assert cuts > 0.7
    assert masks > 0.9


# The target length is drawn once per document and shared by its instances. If it is random, the documents are short.
@pytest.mark.parametrize(
    ("sentences", "short_seq_prob", "whole_words", "clusters"),
    slow_after(1, [(3, 0.5, False, 3), (0, 0.0, False, 1), (0, 0.0, True, 1)]),
)
def test_fast_records_have_the_distribution_of_the_reference(
    sentences: int,
    short_seq_prob: float,
    whole_words: bool,
    clusters: int,
    corpus: Corpus,
    tmp_path: pathlib.Path,
):
    # Only one of the algorithms ends a document at the end of a file, so only one file is read.
    lines = pathlib.Path(corpus[0][0]).read_text(encoding="utf-8").splitlines()
    if sentences:
        lines = [line for line in lines if line]
        parts = [lines[start : start + sentences] for start in range(0, len(lines), sentences)]
        lines = [line for part in parts for line in [*part, ""]]
    text = write_text(tmp_path / "text.txt", "\n".join(lines) + "\n")
    batches = []
    for algorithm in ("reference", "fast"):
        changes = {"num_shards": 1, "dupe_factor": 12, "algorithm": algorithm, "input_format": "sentences"}
        changes |= {"do_whole_word_mask": whole_words, "short_seq_prob": short_seq_prob}
        make_records(([text], corpus[1]), tmp_path / algorithm, **changes)
        batches.append(parsed(list((tmp_path / algorithm).glob("*.tfrecord"))))
    mask_id = load_vocab(corpus[1])["[MASK]"]
    histograms = []
    for batch in batches:
        weights = batch["masked_lm_weights"] > 0
        new = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], axis=1)[weights]
        old = batch["masked_lm_ids"][weights]
        kinds = np.where(new == mask_id, 0, np.where(new == old, 1, 2))
        length = batch["input_mask"].sum(axis=1)
        second = batch["segment_ids"].sum(axis=1)
        histograms.append({
            "lengths": histogram(length, LENGTH),
            "lengths of the second segment": histogram(second, LENGTH),
            "random next": histogram(batch["next_sentence_labels"][:, 0], 1),
            "random next of short ones": histogram(batch["next_sentence_labels"][length < 20, 0], 1),
            "predictions": histogram(weights.sum(axis=1), PREDICTIONS),
            "positions": histogram(batch["masked_lm_positions"][weights], LENGTH),
            "kinds": histogram(kinds, 2),
            "predicted tokens": histogram(old, 2000),
            "replacements": histogram(new[kinds == 2], 2000),
            "first tokens": histogram(batch["input_ids"][:, 1], 2000),
            "last tokens": histogram(batch["input_ids"][np.arange(len(length)), length - 2], 2000),
        })  # fmt: skip
    for what, one in histograms[0].items():
        assert_alike(one, histograms[1][what], what, clusters)


def test_difference_in_distribution_is_detected():
    rng = np.random.default_rng(0)
    one, two, other = (rng.binomial(20, share, 20_000) for share in (0.5, 0.5, 0.51))
    assert_alike(histogram(one, 20), histogram(two, 20), "equal")
    with pytest.raises(AssertionError, match="different"):
        assert_alike(histogram(one, 20), histogram(other, 20), "different")


@pytest.mark.parametrize("which", ["vocabulary", "text"])
def test_change_of_an_input_during_the_run_is_detected(
    which: str, corpus: Corpus, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    text, vocab = tmp_path / "text.txt", tmp_path / "vocab.txt"
    text.write_text(pathlib.Path(corpus[0][0]).read_text())
    vocab.write_text(pathlib.Path(corpus[1]).read_text())
    inputs = ([str(text)], str(vocab))
    make_records(inputs, tmp_path / "straight")
    do_all = worker_pool.WorkerPool.do_all

    def changing(self: worker_pool.WorkerPool, what: str, *arguments: object) -> list[dict[str, object]]:
        if what == "tokenizing":
            changed = vocab if which == "vocabulary" else text
            changed.write_text("\n".join([*SPECIAL_TOKENS, *map(chr, range(97, 123))]) + "\n")
        return do_all(self, what, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(worker_pool.WorkerPool, "do_all", changing)
    options = make_options(inputs, tmp_path / "out")
    if which == "text":
        assert "text.txt changed while it was read" in refusal(one_machine.create_pretraining_data, options)
        assert not list((tmp_path / "out").iterdir())
    else:
        one_machine.create_pretraining_data(options)
        assert contents(tmp_path / "out") == contents(tmp_path / "straight")


def test_more_shards_than_instances_are_written_too(
    corpus: Corpus, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    text = write_text(tmp_path / "text.txt", "return the value of the object.\n" * 5)
    summary = make_records(([text], corpus[1]), tmp_path / "out", num_shards=100, num_workers=1)
    described = json.loads((tmp_path / "out" / "out.manifest.json").read_text())
    assert [shard["records"] for shard in described["shards"]].count(0) > 80
    assert sum(shard["records"] for shard in described["shards"]) == summary.instances
    assert "of 100 files are empty" in capsys.readouterr().err
