"""The fast algorithm: the distributions of the reference algorithm, and the same bytes however a run is interrupted."""

import contextlib
import dataclasses
import errno
import itertools
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from data_gen.options import RecordOptions
from data_gen.pipelines import fast, one_machine, outputs, run_plan, worker, worker_pool, writer
from data_gen.rules import vectorized_instances, vectorized_masking
from data_gen.rules.instances import InstanceConfig, instances_of_document
from data_gen.rules.masking import MaskingVocabulary
from data_gen.rules.random_numbers import Random
from data_gen.text import formats, python_prose, token_store
from official_bert.data import record_codec, record_damage, record_reader, record_schema
from official_bert.errors import UserError
from official_bert.tokenization import pairs
from official_bert.tokenization.caching import CachingTokenizer
from official_bert.tokenization.exact import SPECIAL_TOKENS, FullTokenizer, load_vocab
from official_bert.utils.locks import lock_file
from tests.conftest import ROOT
from tests.data_gen.distributions import assert_alike, histogram

LENGTH, PREDICTIONS = 32, 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Three files of real prose, and a vocabulary of its commonest words and all letters."""
    folder = tmp_path_factory.mktemp("corpus")
    documents, _ = python_prose.gather()
    paths = []
    for number in range(3):
        path = folder / f"text{number}.txt"
        path.write_text("\n\n".join("\n".join(document) for document in documents[number::3][:40]), encoding="utf-8")
        paths.append(str(path))
    counts: dict[str, int] = {}
    for path in paths:
        for word in pathlib.Path(path).read_text(encoding="utf-8").lower().split():
            counts[word] = counts.get(word, 0) + 1
    common = sorted((word for word in counts if re.fullmatch("[a-z]{2,}", word)), key=counts.__getitem__)[-800:]
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters), *common]
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    return paths, str(vocab)


def options_for(corpus: tuple[list[str], str], folder: pathlib.Path, **changes: object) -> RecordOptions:
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "input_file": corpus[0],
        "output_file": [str(folder / "out.tfrecord")],
        "vocab_file": corpus[1],
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "dupe_factor": 2,
        "num_shards": 3,
        "num_workers": 2,
        "block_tokens": 5000,
        **changes,
    }
    return RecordOptions(**values)  # type: ignore[arg-type]


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def parsed(paths: list[pathlib.Path]) -> dict[str, np.ndarray]:
    schema = record_schema.pretraining_schema(LENGTH, PREDICTIONS)
    data = tf.data.TFRecordDataset([str(path) for path in paths], record_reader.compression(list(map(str, paths))))
    batch = record_codec.parse(next(iter(data.batch(10**6))), schema)
    return {name: value.numpy() for name, value in batch.items()}


def test_bytes_are_the_same_for_any_number_of_workers(
    corpus: tuple[list[str], str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    made = []
    for workers in (1, 2, 4):
        # Several workers write each file: it consists of many buckets then.
        monkeypatch.setattr(run_plan, "_BUCKET_BYTES", 6e6 if workers == 1 else 10_000)
        one_machine.create_pretraining_data(options_for(corpus, tmp_path / str(workers), num_workers=workers))
        made.append(contents(tmp_path / str(workers)))
    assert made[0] == made[1] == made[2]
    shards = [f"out-{number:05}-of-00003.tfrecord" for number in range(3)]
    assert list(made[0]) == [*shards, "out.manifest.json"]
    other = options_for(corpus, tmp_path / "other", random_seed=1)
    one_machine.create_pretraining_data(other)
    assert contents(tmp_path / "other").keys() == made[0].keys()
    assert contents(tmp_path / "other") != made[0]


def test_ctrl_c_is_answered_by_the_command_alone(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]):
    workers = worker_pool.WorkerPool(str(tmp_path))
    workers.grow(1)
    (process,) = workers._processes
    process.send_signal(signal.SIGINT)  # while it imports: a terminal sends it to all processes
    process.communicate()
    assert process.returncode == 0
    assert capfd.readouterr().err == ""


def command_for(options: RecordOptions) -> list[str]:
    return [
        sys.executable, "-m", "official_bert_cli", "make-records", f"--input_file={','.join(options.input_file)}",
        f"--output_file={options.output_file[0]}", f"--vocab_file={options.vocab_file}", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}", f"--dupe_factor={options.dupe_factor}", "--num_shards=3",
        "--num_workers=2", f"--block_tokens={options.block_tokens}",
    ]  # fmt: skip


def test_bytes_are_the_same_after_kills_at_random_moments(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    small = {"dupe_factor": 20, "block_tokens": 1500}
    one_machine.create_pretraining_data(options_for(corpus, tmp_path / "straight", **small))
    options = options_for(corpus, tmp_path / "killed", **small)
    work = tmp_path / "killed" / "out.work"
    rng = random.Random(time.time_ns())
    found = []
    for _ in range(5):
        process = subprocess.Popen(
            command_for(options), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        before = len(list(work.glob("*"))) if work.exists() else 0
        # Not before it has begun to do something new, and then at any moment.
        while process.poll() is None and (not work.exists() or len(list(work.glob("*"))) <= before):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.6))
        os.killpg(process.pid, signal.SIGKILL)  # the workers too
        process.wait()
        found.append(len(list(work.glob("*.json"))) if work.exists() else None)
        if found[-1] is None:
            break
    assert found[0] is not None, "the first try ended before it could be killed"
    done = subprocess.run(command_for(options), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight"), found


def test_after_a_full_disk_the_same_command_continues(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    one_machine.create_pretraining_data(options_for(corpus, tmp_path / "straight"))
    options = options_for(corpus, tmp_path / "full")
    # A file may not grow over 100 kB: the system's answer is an error of the write, as on a full disk.
    done = subprocess.run(
        command_for(options), cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "full").glob("*.tfrecord*"))
    done = subprocess.run(command_for(options), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "going on with the unfinished work" in done.stdout
    assert contents(tmp_path / "full") == contents(tmp_path / "straight")


def test_what_a_kill_left_beside_the_records_is_removed(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    left = [tmp_path / "out-00001-of-00003.tfrecord.writing-0123456789ab", tmp_path / "mine.tfrecord.writing-0"]
    for path in left:
        path.write_text("half")
    one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    assert [path.exists() for path in left] == [False, True]


def test_other_errors_of_the_system_are_not_called_a_full_disk():
    full = pytest.raises(UserError, match="cannot write in out.work: .* make room and run the same command")
    with full, fast._write_errors_explained("out.work"):
        raise OSError(errno.ENOSPC, "No space left on device")
    other = pytest.raises(UserError, match="cannot work in out.work: .*Permission denied.* correct that and run")
    with other, fast._write_errors_explained("out.work"):
        raise OSError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(("code", "words"), [
    ("import os; os.kill(os.getpid(), 9)", "was killed at .* fewer --num_workers goes on .* remove out.work and"),
    ("raise SystemExit(3)", "ended with code 3 at .* run the same command again"),
    ("input(); print('{\"result\": {', end=''); raise SystemExit(3)", "ended with code 3 at"),  # within its answer
])  # fmt: skip
def test_the_end_of_a_worker_is_explained(code: str, words: str):
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with pytest.raises(UserError, match=words):
        worker_pool.ask(process, {"block": [0, 0]}, "out.work")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def test_workers_find_what_this_process_finds(
    corpus: tuple[list[str], str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert one_machine.create_pretraining_data(options_for(corpus, tmp_path)).instances


def test_the_flag_that_an_error_of_the_text_advises_helps(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"return the value\nthe \xe9 object\n")
    inputs = ([*corpus[0], str(path)], corpus[1])
    with pytest.raises(UserError, match="latin1.txt, line 2: .* pass --drop_invalid_utf8"):
        one_machine.create_pretraining_data(options_for(inputs, tmp_path / "out", input_format="sentences"))
    assert not list((tmp_path / "out").iterdir())
    options = options_for(inputs, tmp_path / "out", input_format="sentences", drop_invalid_utf8=True)
    assert one_machine.create_pretraining_data(options).instances


def test_shards_of_another_run_are_not_mixed_with_these(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"out.manifest.json describes records made from other flags; remove it"):
        one_machine.create_pretraining_data(options_for(corpus, tmp_path, random_seed=5))
    (tmp_path / "out.work").mkdir()
    (tmp_path / "out.work" / "source.json").write_text("{}")
    (tmp_path / "out.manifest.json").unlink()
    with pytest.raises(UserError, match=r"out.work holds the unfinished work of another run"):
        one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    assert {name: value for name, value in before.items() if "manifest" not in name} == {
        path.name: path.read_bytes() for path in tmp_path.glob("*.tfrecord")
    }


def test_a_complete_run_is_not_done_again(
    corpus: tuple[list[str], str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    first = one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert one_machine.create_pretraining_data(options_for(corpus, tmp_path)) == first
    assert "complete already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    next(iter(tmp_path.glob("*.tfrecord"))).unlink()  # a shard that is gone is made again
    one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    assert len(list(tmp_path.glob("*.tfrecord"))) == 3


def test_manifest_describes_what_was_made(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    summary = one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    described = json.loads((tmp_path / "out.manifest.json").read_text())
    assert str(tmp_path) not in json.dumps(described)
    assert sum(shard["records"] for shard in described["shards"]) == summary.instances
    for shard in described["shards"]:
        content = (tmp_path / shard["file"]).read_bytes()
        assert len(content) == shard["bytes"]
        assert record_reader.count(str(tmp_path / shard["file"])) == shard["records"]
    lines = outputs.describe_outputs(options_for(corpus, tmp_path)).splitlines()
    assert lines == [f"records: {tmp_path}/out-*-of-00003.tfrecord", f"manifest: {tmp_path}/out.manifest.json"]
    batch = parsed(sorted(tmp_path.glob("*.tfrecord")))
    assert int(batch["input_mask"].sum()) == summary.tokens
    assert int(batch["masked_lm_weights"].sum()) == summary.predictions
    assert int(batch["next_sentence_labels"].sum()) == summary.random_next


def test_gzip_and_shard_size_change_the_files_and_not_the_records(
    corpus: tuple[list[str], str], tmp_path: pathlib.Path
):
    one_machine.create_pretraining_data(options_for(corpus, tmp_path / "plain", num_shards=1))
    one_machine.create_pretraining_data(options_for(corpus, tmp_path / "zipped", num_shards=1, gzip=True))
    one_machine.create_pretraining_data(options_for(corpus, tmp_path / "sized", num_shards=1, shard_size_mb=1))
    plain = parsed(list((tmp_path / "plain").glob("*.tfrecord")))
    zipped = parsed(list((tmp_path / "zipped").glob("*.tfrecord")))
    shards = sorted((tmp_path / "sized").glob("*.tfrecord"))
    for name, values in plain.items():
        np.testing.assert_array_equal(zipped[name], values)
    assert len(shards) > 1
    assert all(0.5e6 < path.stat().st_size < 2e6 for path in shards)


def test_every_record_fits_the_schema(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    for whole_words in (False, True):
        folder = tmp_path / str(whole_words)
        one_machine.create_pretraining_data(options_for(corpus, folder, do_whole_word_mask=whole_words))
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


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return ids


def test_records_stand_in_a_random_order_and_random_segments_come_from_all_of_the_corpus(tmp_path: pathlib.Path):
    count, special = 200, len(SPECIAL_TOKENS)
    # Each document repeats a word of its own, which tells where a segment comes from.
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *(f"w{number}" for number in range(count))]) + "\n")
    sentences = [" ".join([f"w{number}"] * 6) + "\n" for number in range(count)]
    (tmp_path / "text.txt").write_text("\n".join(sentence * 20 for sentence in sentences))
    options = options_for(
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

    # Documents stand in order in the text: ranks are the numbers themselves. Five deviations.
    assert correlation(np.arange(len(first)), first) < 5
    assert correlation(first[1:], first[:-1]) < 5
    is_random = batch["next_sentence_labels"][:, 0] == 1
    assert (first[~is_random] == second[~is_random]).all()
    first, second = first[is_random], second[is_random]
    assert len(first) > 500
    assert (first != second).all()
    # Any but the own document is as likely, so that there is a slight tendency away from it.
    assert correlation(first, second) < 5
    assert_alike(histogram(second // 20, 9), histogram(np.arange(count) // 20, 9), "documents of random segments")


def test_each_pass_cuts_and_masks_anew(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    one_machine.create_pretraining_data(options_for(corpus, tmp_path, short_seq_prob=0.0))
    batch = parsed(sorted(tmp_path.glob("*.tfrecord")))
    # Were the two passes alike, each record would be there twice.
    cuts = len(np.unique(unmasked(batch), axis=0)) / len(batch["input_ids"])
    masks = len(np.unique(np.hstack([batch["masked_lm_positions"], unmasked(batch)]), axis=0)) / len(batch["input_ids"])
    assert cuts > 0.7
    assert masks > 0.9


# The target length is drawn once for a document and shared by its instances: where it is random, documents are short.
@pytest.mark.parametrize(
    ("sentences", "short_seq_prob", "whole_words", "clusters"),
    [(0, 0.0, False, 1), (0, 0.0, True, 1), (3, 0.5, False, 3)],
)
def test_fast_records_are_distributed_as_the_reference_ones_are(
    sentences: int,
    short_seq_prob: float,
    whole_words: bool,
    clusters: int,
    corpus: tuple[list[str], str],
    tmp_path: pathlib.Path,
):
    # A file's end ends a document in one algorithm alone, so that one file is read.
    lines = pathlib.Path(corpus[0][0]).read_text(encoding="utf-8").splitlines()
    if sentences:
        lines = [line for line in lines if line]
        parts = [lines[start : start + sentences] for start in range(0, len(lines), sentences)]
        lines = [line for part in parts for line in [*part, ""]]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    batches = []
    for algorithm in ("reference", "fast"):
        changes = {"num_shards": 1, "dupe_factor": 12, "algorithm": algorithm, "input_format": "sentences"}
        changes |= {"do_whole_word_mask": whole_words, "short_seq_prob": short_seq_prob}
        one_machine.create_pretraining_data(options_for(([str(text)], corpus[1]), tmp_path / algorithm, **changes))
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


def test_a_difference_in_distribution_would_be_seen():
    rng = np.random.default_rng(0)
    one, two, other = (rng.binomial(20, share, 20_000) for share in (0.5, 0.5, 0.51))
    assert_alike(histogram(one, 20), histogram(two, 20), "equal")
    with pytest.raises(AssertionError, match="different"):
        assert_alike(histogram(one, 20), histogram(other, 20), "different")


def test_truncation_at_once_leaves_what_truncation_step_by_step_leaves():
    rng = random.Random(0)
    sizes = [(rng.randint(1, 40), rng.randint(1, 40)) for _ in range(500)]
    a, b = (np.array(column) for column in zip(*sizes, strict=True))
    zeros = np.zeros(len(a), np.int64)
    vectorized_pairs = vectorized_instances.Pairs(zeros, a, zeros, b, zeros > 0)
    cut = vectorized_instances._truncated(vectorized_pairs, 29, Random(1))
    for row, (long, short) in enumerate(sizes):
        first, second = list(range(long)), list(range(short))
        pairs.truncate_at_random_ends(first, second, 29, rng)
        assert (cut.a_length[row], cut.b_length[row]) == (len(first), len(second))
        assert 0 <= cut.a_start[row] <= long - len(first)
        assert 0 <= cut.b_start[row] <= short - len(second)


@pytest.mark.parametrize("trials", [0, 1, 5, 63, 64, 65, 130, 1000])
def test_fair_binomial_numbers_have_the_mean_and_variance_of_a_fair_coin(trials: int):
    successes = Random("coin", trials).fair_binomial(np.full(20_000, trials))
    assert successes.min() >= 0
    assert successes.max() <= trials
    assert successes.mean() == pytest.approx(trials / 2, abs=4 * math.sqrt(trials / 4 / 20_000))
    if trials:
        assert successes.var() == pytest.approx(trials / 4, rel=0.05)


def test_random_numbers_are_the_same_in_every_release():
    random_numbers = Random(12345, 0, 1)
    assert [hex(int(value)) for value in random_numbers.raw(2)] == GOLDEN_RAW
    assert 0 <= random_numbers.uniform(1000).min() <= random_numbers.uniform(1000).max() < 1
    assert set(Random("die").below(np.full(1000, 6)).tolist()) == set(range(6))


GOLDEN_RAW: list[str] = ["0x9d8357d88b653557", "0x934968f139a90ee"]


def test_actual_next_segments_follow_and_random_ones_come_from_other_documents(tmp_path: pathlib.Path):
    # Each document's tokens count upwards from a number of its own, so that a token tells where it comes from.
    rng = random.Random(3)
    documents = []
    for number in range(30):
        start = 10 + 100 * number
        tokens = list(range(start, start + rng.randint(1, 90)))
        cuts = sorted(rng.sample(range(1, len(tokens)), min(len(tokens) - 1, rng.randint(0, 8))))
        bounds = zip([0, *cuts], [*cuts, len(tokens)], strict=True)
        documents.append([" ".join(map(str, tokens[first:last])) for first, last in bounds])

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = [[int(token) for token in sentence.split()] for sentence in sentences]
        return np.array(sum(ids, []), np.int32), np.cumsum([0, *map(len, ids)])  # noqa: RUF017

    dtype = token_store.id_dtype(5000)
    token_store.write_part(str(tmp_path / "part"), documents, encode, dtype, 1)
    token_store.join_parts(str(tmp_path / "corpus"), [str(tmp_path / "part")])
    store = token_store.TokenStore(str(tmp_path / "corpus"), dtype)
    vocabulary = MaskingVocabulary(list(range(5000)), frozenset(), frozenset((2, 3)), 4)
    config = InstanceConfig(
        max_seq_length=24, max_predictions_per_seq=1, masked_lm_prob=0.01, short_seq_prob=0.1, do_whole_word_mask=False,
        cls=2, sep=3, vocabulary=vocabulary,
    )  # fmt: skip
    kinds = set()
    for block in store.blocks(200):
        made = vectorized_instances.make_instances(store, *block, config, Random(block))
        for row, length in enumerate(made.length):
            ids = made.ids[row].astype(int)
            ids[made.positions[row, 0]] = made.labels[row, 0]
            a = ids[1 : made.first_length[row] - 1]
            b = ids[made.first_length[row] : length - 1]
            assert (np.diff(a) == 1).all()
            assert (np.diff(b) == 1).all()
            same = (a[0] - 10) // 100 == (b[0] - 10) // 100
            assert same != made.is_random_next[row]
            if same:
                assert b[0] > a[-1]
            kinds.add(bool(same))
    assert kinds == {True, False}


def test_chunks_are_cut_paired_and_put_back_as_in_the_reference_algorithm(tmp_path: pathlib.Path):
    # Sentences of one token that tells document and sentence; chunks of up to four of them.
    documents, sentences = 6000, 8
    words = [[str(10 + sentences * number + each) for each in range(sentences)] for number in range(documents)]

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return np.array(list(map(int, sentences)), np.int32), np.arange(len(sentences) + 1)

    dtype = token_store.id_dtype(2**20)
    token_store.write_part(str(tmp_path / "part"), words, encode, dtype, 1)
    token_store.join_parts(str(tmp_path / "corpus"), [str(tmp_path / "part")])
    config = InstanceConfig(
        max_seq_length=7, max_predictions_per_seq=0, masked_lm_prob=0.15, short_seq_prob=0.0, do_whole_word_mask=False,
        cls=2, sep=3, vocabulary=MaskingVocabulary([], frozenset(), frozenset(), 4),
    )  # fmt: skip
    store = token_store.TokenStore(str(tmp_path / "corpus"), dtype)
    instances = vectorized_instances.make_instances(store, 0, documents, config, Random("chunks"))
    used: list[int] = []
    decisions: list[bool] = []
    cuts: list[int] = []
    begins_of_random: list[int] = []
    for ids, length, first, is_random in zip(
        instances.ids.tolist(), instances.length, instances.first_length, instances.is_random_next, strict=True
    ):
        a, b = ids[1 : first - 1], ids[first : length - 1]
        left = sentences - (a[0] - 10) % sentences
        if left > 1:
            decisions.append(bool(is_random))
        if left >= 4:
            cuts.append(len(a))
        if is_random:
            begins_of_random.append((b[0] - 10) % sentences)
        used += a + ([] if is_random else b)
    # Each sentence is used once, in order: what follows a when b is random comes again.
    assert used == list(range(10, 10 + documents * sentences))
    assert len(decisions) > 15_000
    assert abs(np.mean(decisions) - 0.5) < 5 * 0.5 / math.sqrt(len(decisions))
    assert 5 * 0.5 / math.sqrt(len(decisions)) < 0.021
    assert_alike(np.bincount(cuts, minlength=4)[1:], np.full(3, 100_000), "cuts")
    assert_alike(np.bincount(begins_of_random, minlength=sentences), np.full(sentences, 100_000), "random sentences")
    # The target of a short document is from two tokens to the full length: that of its first chunk, if b is the rest.
    config = dataclasses.replace(config, short_seq_prob=1.0)
    instances = vectorized_instances.make_instances(store, 0, documents, config, Random("targets"))
    whole = (instances.ids[:, 1] % sentences == 10 % sentences) & ~instances.is_random_next
    assert_alike(np.bincount(instances.length[whole] - 3, minlength=5)[2:], np.full(3, 100_000), "targets")
    # So many documents are short ones: a third of these have the full length all the same.
    config = dataclasses.replace(config, short_seq_prob=0.9)
    instances = vectorized_instances.make_instances(store, 0, documents, config, Random("short"))
    whole = (instances.ids[:, 1] % sentences == 10 % sentences) & ~instances.is_random_next
    short = instances.length[whole] < 7
    assert abs(np.mean(short) - 0.6) < 5 * 0.49 / math.sqrt(len(short)) < 0.05


def test_blocks_cover_every_document_once(tmp_path: pathlib.Path):
    sizes = [random.Random(n).randint(1, 50) for n in range(200)]

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        counts = [int(sentence) for sentence in sentences]
        return np.ones(sum(counts), np.int32), np.cumsum([0, *counts])

    for number in range(2):
        documents = [[str(size), "0", "1"] for size in sizes[100 * number : 100 * number + 100]] + [["0"]]
        token_store.write_part(str(tmp_path / str(number)), documents, encode, np.dtype("<u2"), 1)
    totals = token_store.join_parts(str(tmp_path / "corpus"), [str(tmp_path / "0"), str(tmp_path / "1")])
    tokens = sum(sizes) + 200
    assert totals == {"tokens": tokens, "sentences": 400, "documents": 200, "unknown": tokens}
    store = token_store.TokenStore(str(tmp_path / "corpus"), np.dtype("<u2"))
    np.testing.assert_array_equal(store.documents, range(0, 401, 2))
    expected = np.cumsum([0] + [part for size in sizes for part in (size, 1)])
    np.testing.assert_array_equal(store.sentences, expected)
    for limit in (1, 60, 500, 10**6):
        blocks = store.blocks(limit)
        assert blocks[0][0] == 0
        assert blocks[-1][1] == 200
        assert all(one[1] == two[0] for one, two in itertools.pairwise(blocks))


def test_frames_are_those_of_tensorflow(tmp_path: pathlib.Path):
    contents = [b"", b"a", bytes(range(256)) * 20]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as theirs:
        for content in contents:
            theirs.write(content)
    assert (tmp_path / "theirs").read_bytes() == writer.joined_frames(contents)


def test_text_that_tokenizes_to_nothing_is_refused(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    path = tmp_path / "empty.txt"
    path.write_text("\n\u200b\n\n")
    with pytest.raises(UserError, match="the input holds no text"):
        one_machine.create_pretraining_data(options_for(([str(path)], corpus[1]), tmp_path / "out"))


def test_one_sentence_is_enough(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    path = tmp_path / "one.txt"
    path.write_text("return the value of the object.\n")
    summary = one_machine.create_pretraining_data(options_for(([str(path)], corpus[1]), tmp_path / "out"))
    assert (summary.documents, summary.instances, summary.random_next) == (1, 2, 2)


def test_reference_and_fast_masking_agree_on_whole_words(corpus: tuple[list[str], str]):
    """Where the budget allows every word, both choose all of them, across [SEP] too."""
    tokenizer = FullTokenizer(corpus[1])
    vocabulary = MaskingVocabulary.of(tokenizer.vocab)
    config = InstanceConfig(
        max_seq_length=LENGTH, max_predictions_per_seq=LENGTH, masked_lm_prob=0.99, short_seq_prob=0.0,
        do_whole_word_mask=True, cls=2, sep=3, vocabulary=vocabulary,
    )  # fmt: skip
    sentences = ["unaffable zebras quarrel", "qwertyuiop asdfgh"]
    document = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence)) for sentence in sentences]
    for instance in instances_of_document([document, document], 0, config, random.Random(0)):
        ids = np.zeros((1, LENGTH), np.uint16)
        original = list(instance.input_ids)
        for position, label in zip(instance.masked_lm_positions, instance.masked_lm_ids, strict=True):
            original[position] = label
        ids[0, : len(original)] = original
        position = np.arange(LENGTH)[None, :]
        candidate = (position < len(original)) & ~np.isin(ids, (2, 3))
        keys = Random(1).keys(1, LENGTH)
        chosen = vectorized_masking._whole_words(ids, candidate, np.array([LENGTH]), keys, config)
        assert np.flatnonzero(chosen[0]).tolist() == np.flatnonzero(candidate[0]).tolist()


def test_two_at_once_are_kept_apart(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    several = [str(tmp_path / "other" / "b.tfrecord"), str(tmp_path / "out.tfrecord")]
    (tmp_path / "other").mkdir()
    with lock_file(str(tmp_path / "out.manifest.json"), "output_file"):
        for changes in ({}, {"num_shards": 1, "algorithm": "reference", "input_format": "sentences"}):
            with pytest.raises(UserError, match="--output_file: .*out.manifest.json is in use"):
                one_machine.create_pretraining_data(options_for(corpus, tmp_path, **changes))
    with (
        lock_file(str(tmp_path / "out.tfrecord"), "output_file"),
        pytest.raises(UserError, match="--output_file: .*out.tfrecord is in use"),
    ):
        one_machine.create_pretraining_data(options_for(corpus, tmp_path, num_shards=1, output_file=several))
    assert not list(tmp_path.glob("*.tfrecord*"))
    assert one_machine.create_pretraining_data(options_for(corpus, tmp_path)).instances
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("which", ["vocabulary", "text"])
def test_what_changes_while_text_is_tokenized_is_not_mixed(
    which: str, corpus: tuple[list[str], str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    text, vocab = tmp_path / "text.txt", tmp_path / "vocab.txt"
    text.write_text(pathlib.Path(corpus[0][0]).read_text())
    vocab.write_text(pathlib.Path(corpus[1]).read_text())
    inputs = ([str(text)], str(vocab))
    one_machine.create_pretraining_data(options_for(inputs, tmp_path / "straight"))
    do_all = worker_pool.WorkerPool.do_all

    def changing(self: worker_pool.WorkerPool, what: str, *arguments: object) -> list[dict[str, object]]:
        if what == "tokenizing":
            changed = vocab if which == "vocabulary" else text
            changed.write_text("\n".join([*SPECIAL_TOKENS, *map(chr, range(97, 123))]) + "\n")
        return do_all(self, what, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(worker_pool.WorkerPool, "do_all", changing)
    options = options_for(inputs, tmp_path / "out")
    if which == "text":
        with pytest.raises(UserError, match="text.txt changed while it was read; run the same command again"):
            one_machine.create_pretraining_data(options)
        assert not list((tmp_path / "out").iterdir())
    else:
        one_machine.create_pretraining_data(options)
        assert contents(tmp_path / "out") == contents(tmp_path / "straight")


def test_workers_need_no_tensorflow(corpus: tuple[list[str], str]):
    code = (
        "import sys; from data_gen import pipeline, worker; from official_bert.tokenization import caching, exact;"
        f"caching.CachingTokenizer(exact.FullTokenizer({corpus[1]!r})).encode(['the value']);"
        "print(sorted({'tensorflow', 'tensorflow_text', 'keras'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_large_file_is_shared_and_a_line_in_it_is_named(
    corpus: tuple[list[str], str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "_PART_BYTES", 2000)
    vocab = pathlib.Path(corpus[1]).read_text()
    text = tmp_path / "text.txt"
    lines = [line for path in corpus[0] for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
    text.write_text("\n".join(lines) + "\n")
    options = options_for(([str(text)], corpus[1]), tmp_path / "out", input_format="sentences")
    folder = tmp_path / "work"
    plan = run_plan.TextPlan.of(options, [str(text)], load_vocab(corpus[1]))
    (folder / "x").mkdir(parents=True)
    (folder / worker.VOCAB).write_text(vocab)
    (folder / worker.TEXT).write_text(json.dumps(dataclasses.asdict(plan)))
    ranges = worker.Worker(str(folder)).do({"file": [0]})["ranges"]
    assert len(ranges) > 10
    for part in range(len(ranges)):
        worker.Worker(str(folder)).do({"part": [0, part]})
    parts = [worker.part_folder(str(folder), 0, part) for part in range(len(ranges))]
    token_store.join_parts(str(folder / "joined"), parts)
    (tmp_path / "whole").mkdir()
    documents = list(formats.read_documents(str(text), "sentences"))
    tokenizer = CachingTokenizer(FullTokenizer(corpus[1]))
    token_store.write_part(str(folder / "whole"), documents, tokenizer.encode, np.dtype(plan.ids), 1)
    for name in (token_store.IDS, token_store.SENTENCES, token_store.DOCUMENTS):
        assert (folder / "joined" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    content = text.read_bytes()
    text.write_bytes(content + b"the \xe9\n")  # where only the last part reads
    shutil.rmtree(parts[-1])
    (folder / f"part-0-{len(ranges) - 1}.json").unlink()
    with pytest.raises(worker.TextError, match=rf"text.txt, line {len(lines) + 1}: byte 0xe9 at column 5"):
        worker.Worker(str(folder)).do({"part": [0, len(ranges) - 1]})


def test_a_very_long_line_takes_little_memory(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    words = "return the value of the object "
    text = tmp_path / "long.txt"
    text.write_text(words * (8_000_000 // len(words)) + "\n" + words + "\n", encoding="utf-8")
    code = (
        "import numpy as np; from data_gen.text import formats, token_store;"
        "from official_bert.tokenization import caching, exact;"
        f"tokenizer = caching.CachingTokenizer(exact.FullTokenizer({corpus[1]!r}));"
        f"documents = formats.read_documents({str(text)!r}, formats.detect_format({str(text)!r}));"
        f"token_store.write_part({str(tmp_path / 'part')!r}, documents, tokenizer.encode, np.dtype('<u2'), 1);"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) / 1024 < 150  # MB, of which 40 are Python, NumPy and the table of characters


def test_more_shards_than_instances_are_written_too(
    corpus: tuple[list[str], str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    text = tmp_path / "text.txt"
    text.write_text("return the value of the object.\n" * 5)
    options = options_for(([str(text)], corpus[1]), tmp_path / "out", num_shards=100, num_workers=1)
    summary = one_machine.create_pretraining_data(options)
    described = json.loads((tmp_path / "out" / "out.manifest.json").read_text())
    assert [shard["records"] for shard in described["shards"]].count(0) > 80
    assert sum(shard["records"] for shard in described["shards"]) == summary.instances
    assert "of 100 files are empty" in capsys.readouterr().err
