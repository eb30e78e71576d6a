"""The fast algorithm: same distributions as the reference algorithm, and same bytes however a run is interrupted."""

import contextlib
import errno
import gzip
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from data_gen.pipelines import fast, one_machine, run_plan, shuffle, worker
from official_bert.data import record_codec
from official_bert.errors import UserError
from official_bert.tokenization.exact import SPECIAL_TOKENS, load_vocab
from tests.data_gen import samples
from tests.data_gen.samples import assert_alike, contents, histogram, make_options, make_records, parse_records
from tests.make import ROOT, assert_mentions, assert_rejected, run_python, write_text, write_vocab


def test_bytes_are_the_same_for_any_number_of_workers(corpus, tmp_path, monkeypatch):
    make_records(corpus, tmp_path / "one")
    make_records(corpus, tmp_path / "other", random_seed=1)
    # Several workers encode one file together only if it consists of many buckets.
    monkeypatch.setattr(run_plan, "_BUCKET_BYTES", 10_000)
    # The workers can import this repository from any folder.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    one_machine.create_pretraining_data(make_options(corpus, tmp_path / "two", num_workers=2))
    one, other, two = (contents(tmp_path / name) for name in ("one", "other", "two"))
    assert list(one) == [*(f"out-{number:05}-of-00003.tfrecord" for number in range(3)), "out.manifest.json"]
    assert one == two
    assert not one.items() & other.items()


def make_command(options):
    return ["-m", "official_bert_cli", *samples.make_command(options), "--num_workers=2"]


@pytest.mark.slow
@pytest.mark.core
def test_bytes_are_the_same_after_kills_at_random_moments(corpus, tmp_path):
    small = {"dupe_factor": 20, "block_tokens": 1500}
    make_records(corpus, tmp_path / "straight", **small)
    options = make_options(corpus, tmp_path / "killed", **small)
    work = tmp_path / "killed" / "out.work"
    seed = time.time_ns()
    print(f"moments of the kills: random.Random({seed})")  # pytest shows this output if the test fails
    rng, kills = random.Random(seed), 0

    def count_entries() -> int:  # os.walk skips entries that are removed meanwhile
        return sum(len(folders) + len(files) for _, folders, files in os.walk(work))

    while kills < 5 and (work.exists() or not kills):
        before = count_entries()
        settings = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        with subprocess.Popen([sys.executable, *make_command(options)], **settings) as process:
            try:
                # Kill it at a random moment after it has made new progress.
                while process.poll() is None and count_entries() <= before:
                    time.sleep(0.005)
                time.sleep(rng.uniform(0, 0.6))
            finally:
                with contextlib.suppress(ProcessLookupError):  # already ended
                    os.killpg(process.pid, signal.SIGKILL)  # the workers too
        kills += 1
        assert work.exists() or kills > 1, "the first try ended before it could be killed"
    done = run_python(*make_command(options))
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight"), kills


@pytest.mark.slow
def test_after_a_full_disk_the_same_command_continues(corpus, tmp_path):
    make_records(corpus, tmp_path / "straight")
    options = make_options(corpus, tmp_path / "full")
    # Files may not grow beyond 100 kB, so that writing fails as on a full disk.
    limit = (100_000, 100_000)
    done = run_python(*make_command(options), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert_mentions(done.stderr, "error", os.strerror(errno.EFBIG), "free")
    assert f"{tmp_path}/full/out.work" in done.stderr
    assert not list((tmp_path / "full").glob("*.tfrecord*"))
    done = run_python(*make_command(options))
    assert (done.returncode, "resuming the unfinished work" in done.stdout) == (0, True), done.stderr
    assert contents(tmp_path / "full") == contents(tmp_path / "straight")


def test_worker_of_a_removed_run_does_not_write_into_the_next_run(corpus, tmp_path, monkeypatch):
    pieces = load_vocab(corpus[1]).keys() - SPECIAL_TOKENS
    other = corpus[0], write_vocab(tmp_path / "other.txt", [*SPECIAL_TOKENS, *sorted(pieces)])
    make_records(other, tmp_path / "straight")
    run_tasks, orphans = samples.OneProcess.run_tasks, []

    def interrupt(pool: samples.OneProcess, what: str, *rest):
        if what == "making instances" and orphans:
            orphans[0].run_task({"block": [0, 0]})
        elif what == "making instances":
            orphans.append(worker.Worker(pool._folder))
            assert orphans[0]._layout
            assert orphans[0].store
            raise KeyboardInterrupt
        return run_tasks(pool, what, *rest)

    monkeypatch.setattr(samples.OneProcess, "run_tasks", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_records(corpus, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "out.work")
    make_records(other, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "straight")


@pytest.mark.parametrize("which", ["vocabulary", "text"])
def test_change_of_an_input_during_the_run_is_detected(which, corpus, tmp_path, monkeypatch):
    text, vocab = (shutil.copy(path, tmp_path / name) for path, name in ((corpus[0][0], "text"), (corpus[1], "vocab")))
    inputs = [str(text)], str(vocab)
    make_records(inputs, tmp_path / "straight")
    run_tasks = samples.OneProcess.run_tasks

    def change(pool: samples.OneProcess, what: str, *rest):
        if what == "tokenizing":
            write_vocab(text if which == "text" else vocab, [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz"])
        return run_tasks(pool, what, *rest)

    monkeypatch.setattr(samples.OneProcess, "run_tasks", change)
    if which == "text":
        assert_rejected((text, "changed"), make_records, inputs, tmp_path / "out")
        assert not list((tmp_path / "out").iterdir())
    else:
        make_records(inputs, tmp_path / "out")
        assert contents(tmp_path / "out") == contents(tmp_path / "straight")


def test_work_is_removed_after_an_error_in_the_text_although_another_worker_still_writes(corpus, tmp_path, monkeypatch):
    text = write_text(tmp_path / "latin1.txt", b"the cat sat\n\xe9\n")

    def finish_late(pool: samples.OneProcess, *_: object) -> None:
        write_text(pathlib.Path(pool._folder) / "file-1.json", "{}")

    monkeypatch.setattr(samples.OneProcess, "__exit__", finish_late)
    assert_rejected((text, 2, "0xe9"), make_records, ([text], corpus[1]), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_intermediate_files_are_removed_early_and_buckets_are_small(corpus, tmp_path, monkeypatch):
    run_tasks, present, counts = samples.OneProcess.run_tasks, {}, {}

    def run_and_look(pool: samples.OneProcess, what: str, tasks: list[dict[str, object]], *rest):
        names = {path.stem.partition("-")[0] for path in pathlib.Path(pool._folder).iterdir() if not path.suffix}
        present[what], counts[what] = {"part", "spooled"} & names, len(tasks)
        return run_tasks(pool, what, tasks, *rest)

    monkeypatch.setattr(samples.OneProcess, "run_tasks", run_and_look)
    monkeypatch.setattr(run_plan, "_BUCKET_BYTES", 10_000)
    records = make_records(corpus, tmp_path)["instances"]
    steps = ("tokenizing", "making instances", "encoding records", "writing records")
    assert [present[step] for step in steps] == [set(), set(), {"spooled"}, set()]
    assert 5_000 < records * 99 / counts["encoding records"] < 15_000, "a stored instance has 99 bytes"


def test_positions_of_the_longest_record_can_be_stored():
    row = shuffle.Layout(1, 1, np.dtype("<u2"), 1).row
    names = ("length", "first_length", "predictions", "positions")
    assert {np.iinfo(row[name].base).max for name in names} == {2**16 - 1}


def test_temporary_files_of_a_killed_run_are_removed(corpus, tmp_path):
    left = [tmp_path / "out-00001-of-00003.tfrecord.writing-0123456789ab", tmp_path / "mine.tfrecord.writing-0"]
    for path in left:
        path.write_text("half")
    make_records(corpus, tmp_path)
    assert [path.exists() for path in left] == [False, True]


@pytest.mark.parametrize(("number", "word"), [(errno.ENOSPC, "free"), (errno.EDQUOT, "free"), (errno.EACCES, "error")])
def test_system_errors_are_explained(number, word):
    with pytest.raises(UserError) as caught, fast._explain_write_errors("out.work"):
        raise OSError(number, os.strerror(number))
    assert_mentions(str(caught.value), "out.work", os.strerror(number), word)


def test_gzip_and_shard_size_change_the_files_and_not_the_records(corpus, tmp_path):
    for name, changes in {"plain": {}, "zipped": {"gzip": True, "shard_size_mb": 0.2}}.items():
        make_records(corpus, tmp_path / name, num_shards=1, dupe_factor=3, **changes)
    plain, zipped = (parse_records(tmp_path / name) for name in ("plain", "zipped"))
    for name, values in plain.items():
        np.testing.assert_array_equal(zipped[name], values)
    files = [path.read_bytes() for path in (tmp_path / "zipped").glob("*.tfrecord")]
    assert {content[3:8] for content in files} == {bytes(5)}  # no name and no time
    sizes = [len(gzip.decompress(content)) for content in files]
    assert 0.1e6 < min(sizes) < max(sizes) < 0.4e6


def test_records_are_shuffled_and_random_segments_come_from_the_whole_corpus(tmp_path):
    count, special = 200, len(SPECIAL_TOKENS)
    # Each document repeats one unique word, which identifies the source of each segment.
    words = [f"w{number}" for number in range(count)]
    text = write_text(tmp_path / "text.txt", "\n".join((" ".join([word] * 6) + "\n") * 20 for word in words))
    vocab = write_vocab(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, *words])
    flags = {"block_tokens": 2000, "dupe_factor": 3, "input_format": "sentences"}  # 12 blocks
    make_records(([text], vocab), tmp_path / "out", **flags)
    batch = parse_records(tmp_path / "out")
    ids = record_codec.restore_masked_ids(batch) - special
    first, second = ids[:, 1], ids[np.arange(len(ids)), batch["input_mask"].sum(axis=1) - 2]

    def correlation(one: np.ndarray, two: np.ndarray) -> float:
        return abs(np.corrcoef(one, two)[0, 1]) * np.sqrt(len(one))

    # The documents are in order in the text, so ranks are the numbers themselves. The limit is five deviations.
    assert correlation(np.arange(len(first)), first) < 5
    assert correlation(first[1:], first[:-1]) < 5
    is_random = batch["next_sentence_labels"][:, 0] == 1
    np.testing.assert_array_equal(first != second, is_random)
    first, second = first[is_random], second[is_random]
    assert len(first) > 500
    # All other documents are equally likely, so there is a slight tendency away from the document's own number.
    assert correlation(first, second) < 5
    assert_alike(histogram(second // 20, 9), histogram(np.arange(count) // 20, 9), "documents of random segments")


def test_fast_records_have_the_distribution_of_the_reference(corpus, tmp_path):
    # Only one of the algorithms ends a document at the end of a file, so only one file is read.
    text = "\n".join(pathlib.Path(path).read_text(encoding="utf-8") for path in corpus[0])
    lines = [line for line in text.splitlines() if line]
    documents = ["\n".join(lines[start : start + 3]) for start in range(0, len(lines), 3)]
    text = write_text(tmp_path / "text.txt", "\n\n".join(documents) + "\n")
    settings = {"num_shards": 1, "dupe_factor": 8, "input_format": "sentences", "short_seq_prob": 0.5}
    histograms = []
    for algorithm in ("reference", "fast"):
        make_records(([text], corpus[1]), tmp_path / algorithm, algorithm=algorithm, **settings)
        batch = parse_records(tmp_path / algorithm)
        weights = batch["masked_lm_weights"] > 0
        new = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], axis=1)[weights]
        old = batch["masked_lm_ids"][weights]
        kinds = np.where(new == load_vocab(corpus[1])["[MASK]"], 0, np.where(new == old, 1, 2))
        length = batch["input_mask"].sum(axis=1)
        histograms.append({
            "lengths": histogram(length, samples.LENGTH),
            "lengths of the second segment": histogram(batch["segment_ids"].sum(axis=1), samples.LENGTH),
            "random next": histogram(batch["next_sentence_labels"][:, 0], 1),
            "random next of short ones": histogram(batch["next_sentence_labels"][length < 20, 0], 1),
            "predictions": histogram(weights.sum(axis=1), samples.PREDICTIONS),
            "positions": histogram(batch["masked_lm_positions"][weights], samples.LENGTH),
            "kinds": histogram(kinds, 2),
            "predicted tokens": histogram(old, 2000),
            "replacements": histogram(new[kinds == 2], 2000),
            "first tokens": histogram(batch["input_ids"][:, 1], 2000),
            "last tokens": histogram(batch["input_ids"][np.arange(len(length)), length - 2], 2000),
        })  # fmt: skip
    # The target length is drawn once per document and shared by its instances, up to three.
    for what, one in histograms[0].items():
        assert_alike(one, histograms[1][what], what, clusters=3)


def test_more_shards_than_instances_can_be_written(corpus, tmp_path, capsys):
    inputs = [write_text(tmp_path / "text.txt", "return the value of the object.\n" * 5)], corpus[1]
    summary = make_records(inputs, tmp_path / "out", num_shards=100)
    records = [shard["records"] for shard in samples.read_manifest(tmp_path / "out")["shards"]]
    assert records.count(0) > 80
    assert sum(records) == summary["instances"]
    assert f"{records.count(0)} of 100 files are empty" in capsys.readouterr().err
    for count, is_warned in ((100, True), (2, False)):
        files = [str(tmp_path / f"{count}" / f"{number}.tfrecord") for number in range(count)]
        flags = {"algorithm": "reference", "num_shards": 1, "output_file": files}
        assert make_records(inputs, tmp_path / f"{count}", **flags)["instances"] == 2
        assert (f"for {count} files; some are empty" in capsys.readouterr().err) == is_warned
