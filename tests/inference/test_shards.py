"""Shards of --shard, and files written on Dask, even if workers are lost, contain what one run over all rows writes."""

import dataclasses
import itertools
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.checkpoints import loading
from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.commands import FEATURES, PREDICT
from official_bert.inference import batch_prediction, feature_extraction, feature_extractor, on_dask
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions, ShardOptions
from official_bert.inference.shards import ALL_ROWS, Shard
from official_bert.modeling.encoder import build_encoder
from official_bert.runs.locks import lock_file
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import dask_cluster, files
from tests import dask_clusters
from tests.inference.batch_models import export_batches, interrupt_at_group
from tests.make import VOCAB, assert_mentions, assert_rejected, refusal, slow_after, tiny_config, write_rows

TEXTS = ["the cat " * (number * 7 % 11) + f"sat {number}" for number in range(27)]


def write_texts(folder: pathlib.Path, texts: list[str] = TEXTS) -> None:
    """Writes texts to all.jsonl, and to three files of different sizes, part0.jsonl to part2.jsonl."""
    for name, some in (("all", texts), ("part0", texts[:9]), ("part1", texts[9:11]), ("part2", texts[11:])):
        write_rows(folder / f"{name}.jsonl", ({"text": text} for text in some))


def join_shards(folder: pathlib.Path, count: int, name: str = "out.jsonl") -> bytes:
    """Returns the concatenated contents of all shards of an output file. A single shard has the plain name."""
    if count == 1:
        return (folder / name).read_bytes()
    stem, _, ending = name.partition(".")
    return b"".join((folder / f"{stem}-{i:05}-of-{count:05}.{ending}").read_bytes() for i in range(count))


def assert_shards_hold(folder: pathlib.Path, name: str, complete_file: str) -> None:
    """Asserts that two shards of vectors, concatenated, equal the complete file."""
    if not name.endswith("npy"):
        assert join_shards(folder, 2, name) == (folder / complete_file).read_bytes()
        return
    shards = [np.load(folder / name.replace(".", f"-0000{number}-of-00002.")) for number in range(2)]
    np.testing.assert_array_equal(np.concatenate(shards), np.load(folder / complete_file))
    if (folder / f"{complete_file}.tokens.jsonl").exists():
        assert join_shards(folder, 2, f"{name}.tokens.jsonl") == (folder / f"{complete_file}.tokens.jsonl").read_bytes()


@pytest.fixture(scope="session")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export whose answers identify the batch that a text was in."""
    return export_batches(tmp_path_factory.mktemp("export"))


@pytest.fixture
def texts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder with the texts in all.jsonl, in three files part0.jsonl to part2.jsonl, and in all.txt, a.txt, b.txt.

    Reduces groups to four rows, so that a few texts fill several.
    """
    monkeypatch.setattr(batch_prediction, "BATCHES_AT_ONCE", 2)
    monkeypatch.setattr(batch_prediction, "_ROWS_A_DIGEST", 4)
    monkeypatch.setattr(feature_extractor, "_BATCHES_AT_A_TIME", 2)
    write_texts(tmp_path)
    for name, some in (("all", TEXTS), ("a", TEXTS[:5]), ("b", TEXTS[5:])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in some))
    return tmp_path


@pytest.fixture
def tiny_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads a tiny encoder from any folder. It is compiled once, since that takes longer than everything else."""
    loaded = ModelAndTokenizer(build_encoder(tiny_config(), seed=0), tiny_config(), FullTokenizer.from_vocab(VOCAB))
    monkeypatch.setattr(loading, "load", lambda *_, **__: loaded)
    load, extractors = feature_extraction.load_extractor, list[Any]()

    def load_once(options: FeatureOptions) -> Any:
        extractors[:] = extractors or [load(options)]
        return extractors[0]

    monkeypatch.setattr(feature_extraction, "load_extractor", load_once)


def make_options(export_dir: str, folder: pathlib.Path, name: str = "part*", output: str = "out") -> Any:
    return BatchPredictionOptions(export_dir, f"{folder}/{name}.jsonl", f"{folder}/{output}.jsonl", batch_size=2)


def predict(export_dir: str, folder: pathlib.Path, shard: Shard = ALL_ROWS, output: str = "out") -> str:
    return batch_prediction.predict(make_options(export_dir, folder, "all", output), shard)


def predict_at_once(export_dir: str, folder: pathlib.Path) -> bytes:
    predict(export_dir, folder, output="once")
    return (folder / "once.jsonl").read_bytes()


@given(count=st.integers(1, 20), num_rows=st.integers(0, 200), rows_per_group=st.integers(1, 50))
def test_shards_are_contiguous_complete_groups(count: int, num_rows: int, rows_per_group: int):
    ranges = [Shard(index, count).row_range(num_rows, rows_per_group) for index in range(count)]
    assert (ranges[0][0], ranges[-1][1]) == (0, num_rows)
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert all(first <= end for first, end in ranges)
    assert all(first % rows_per_group == 0 for first, _ in ranges if first < num_rows)
    groups = [-(-(end - first) // rows_per_group) for first, end in ranges]
    assert max(groups) - min(groups) <= 1


@pytest.mark.parametrize("count", [1, 3, 9])  # nine shards of seven groups: two shards are empty
def test_shards_contain_the_answers_of_a_run_without_shards(count: int, export_dir: str, texts: pathlib.Path):
    for index in reversed(range(count)):  # one job per shard, in any order
        name = "out.jsonl" if count == 1 else f"out-{index:05}-of-{count:05}.jsonl"
        assert f" to {texts}/{name}" in predict(export_dir, texts, Shard.parse(f"{index}/{count}"))
    assert join_shards(texts, count) == predict_at_once(export_dir, texts)
    assert not list(texts.glob("*.part*"))


def test_shards_of_inputs_with_other_numbers_of_rows_are_not_mixed(export_dir: str, texts: pathlib.Path):
    predict(export_dir, texts, Shard(0, 2))
    numbers = texts / "out.jsonl.shards.json"
    assert_rejected((numbers, 2, 3), predict, export_dir, texts, Shard(1, 3))
    write_texts(texts, TEXTS[1:])
    assert_rejected((numbers, len(TEXTS), len(TEXTS) - 1), predict, export_dir, texts, Shard(1, 2))
    numbers.unlink()
    predict(export_dir, texts, Shard(1, 2))
    of_others = (str(texts / "out.jsonl"), len(TEXTS) - 1, 5)
    assert_rejected((numbers, "rows_per_group", 5), Shard(0, 2).select_rows, *of_others)


def test_interrupted_shard_is_resumed(export_dir: str, texts: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    groups = interrupt_at_group(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        predict(export_dir, texts, Shard(1, 2))
    (part,) = texts.glob("out-00001-of-00002.jsonl.part")
    assert len(part.read_bytes().splitlines()) == 8
    # Rows of the other shard may change in the meantime, but not rows of this one.
    write_texts(texts, [*TEXTS[:12], "another", *TEXTS[13:]])
    assert_rejected((part, 8), predict, export_dir, texts, Shard(1, 2))
    write_texts(texts, ["another", *TEXTS[1:]])
    assert ", 8 of them from an earlier run" in predict(export_dir, texts, Shard(1, 2))
    assert groups[3][0] == TEXTS[20]
    write_texts(texts)
    predict(export_dir, texts, Shard(0, 2))
    assert join_shards(texts, 2) == predict_at_once(export_dir, texts)


def test_a_rejected_row_is_reported_by_its_number_in_the_file(export_dir: str, texts: pathlib.Path):
    write_texts(texts, [*TEXTS[:21], "refused", *TEXTS[21:]])
    assert_rejected((texts / "all.jsonl", "row 22"), predict, export_dir, texts, Shard(1, 2))


def test_the_flag_selects_the_shard(export_dir: str, texts: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    flags = [f"--export_dir={export_dir}", f"--input_file={texts}/all.jsonl", f"--output_file={texts}/out.jsonl"]
    with lock_file(f"{texts}/out.jsonl", "output_file"):  # each shard locks only its own file
        PREDICT.main(*PREDICT.parse([*flags, "--batch_size=2", "--shard=1/3"]))
    assert f"Wrote 8 answers to {texts}/out-00001-of-00003.jsonl" in capsys.readouterr().out
    lines = (texts / "out-00001-of-00003.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == TEXTS[8:16]
    assert ShardOptions().selected() == ALL_ROWS


@pytest.mark.parametrize("shard", ["3/3", "a/b", "-1/2", "0", "0/100000", ""])
def test_invalid_shards_are_rejected(shard: str):
    for command, flag in ((PREDICT, "--export_dir=a"), (FEATURES, "--init=a")):
        flags = [flag, "--input_file=b", "--output_file=c.jsonl", f"--shard={shard}"]
        assert_rejected(("--shard", repr(shard), "INDEX/COUNT"), command.parse, flags)


ADDRESS = "tcp://127.0.0.1:8786"


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch):
    """A cluster that runs every task twice in this process."""
    monkeypatch.setattr(dask_cluster, "Cluster", dask_clusters.OneProcess)
    yield
    on_dask._models.clear()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("count", [1, 3, 9])  # nine shards of seven groups: two shards are empty
def test_tasks_that_run_twice_do_not_change_answers(count: int, export_dir: str, texts: pathlib.Path, monkeypatch):
    expected = predict_at_once(export_dir, texts)
    monkeypatch.chdir(texts)
    options = BatchPredictionOptions(os.path.relpath(export_dir), "part*.jsonl", "out.jsonl", batch_size=2)
    first = "out.jsonl" if count == 1 else f"out-00000-of-0000{count}.jsonl ..."
    assert on_dask.predict(options, count, ADDRESS) == f"Wrote 27 texts to {texts}/{first}"
    assert join_shards(texts, count) == expected
    (model,) = on_dask._models
    if count > 1:
        kept, lost = (texts / f"out-0000{number}-of-0000{count}.jsonl" for number in (1, 2))
        inode = kept.stat().st_ino
        lost.unlink()
        assert on_dask.predict(options, count, ADDRESS).endswith(f"; {count - 1} of {count} files from an earlier run")
        assert kept.stat().st_ino == inode
        assert len(on_dask._models) == 1
        assert model not in on_dask._models  # each run loads the export again
        assert join_shards(texts, count) == expected
    assert not list(texts.glob("*.writing-*"))


@pytest.mark.usefixtures("one_process")
def test_shards_of_another_run_are_rejected_and_kept(export_dir: str, texts: pathlib.Path):
    options = make_options(export_dir, texts)
    on_dask.predict(options, 2, ADDRESS)
    before, run_file, rows = join_shards(texts, 2), texts / "out.jsonl.run.json", texts / "part1.jsonl"
    smaller = dataclasses.replace(options, batch_size=1)
    assert_rejected((run_file, "batch_size", 2, 1), on_dask.predict, smaller, 2, ADDRESS)
    copied = dataclasses.replace(options, export_dir=str(shutil.copytree(export_dir, texts / "copy")))
    assert_rejected((run_file, export_dir, texts / "copy"), on_dask.predict, copied, 2, ADDRESS)
    with lock_file(options.output_file, "output_file"):
        assert_rejected(("--output_file", options.output_file), on_dask.predict, options, 2, ADDRESS)
    assert_rejected((run_file, "num_shards", 2, 3), on_dask.predict, options, 3, ADDRESS)
    rows.write_text(rows.read_text().replace("sat 9", "ran 9"))
    message = refusal(on_dask.predict, options, 2, ADDRESS)
    assert_mentions(message, run_file, "inputs", rows)
    assert "part0" not in message
    run_file.unlink()
    assert_rejected((texts / "out-00000-of-00002.jsonl", run_file), on_dask.predict, options, 2, ADDRESS)
    assert join_shards(texts, 2) == before


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", ["out-00001-of-00002.jsonl", "out.jsonl.run.json", "exports/saved_model.pb"])
def test_inputs_are_not_overwritten_on_dask(name: str, export_dir: str, texts: pathlib.Path):
    export, input_file, output_file = str(shutil.copytree(export_dir, texts / "exports")), "part0.jsonl", name
    if "out" in name:
        input_file, output_file = shutil.copy(texts / "part0.jsonl", texts / name), "out.jsonl"
    options = BatchPredictionOptions(export, str(texts / input_file), str(texts / output_file))
    assert_rejected(("--output_file", texts / name, "input"), on_dask.predict, options, 1 + ("out" in name), ADDRESS)


@pytest.mark.usefixtures("one_process")
def test_failures_are_reported_in_one_line(export_dir: str, texts: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def assert_fails(*names: object, num_shards: int = 2) -> None:
        options = make_options(export_dir, texts, output=f"out{num_shards}")
        message = refusal(on_dask.predict, options, num_shards, ADDRESS)
        assert "\n" not in message
        assert_mentions(message, *names)

    with open(texts / "part1.jsonl", "a") as file:
        file.write('{"txt": "b"}\n')
    assert_fails(f"{texts}/part1.jsonl, line 3", "'text'")
    assert not list(texts.glob("out*"))
    write_texts(texts, [*TEXTS[:11], "refused", *TEXTS])  # the first row of its file
    assert_fails(texts / "part2.jsonl", "row 1")
    assert_fails(texts / "part2.jsonl", "row 1", num_shards=9)  # not in the first shard

    def refuse(*_: object) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(batch_prediction.Prediction, "write", refuse)
    assert_fails("full")


@pytest.mark.usefixtures("one_process")
def test_paths_may_be_remote(export_dir: str, texts: pathlib.Path):
    # TensorFlow's in-memory file system replaces a remote one.
    for path in texts.glob("part*"):
        files.copy(str(path), f"ram://prediction/{path.name}")
    remote = BatchPredictionOptions(export_dir, "ram://prediction/part*", "ram://prediction/out.jsonl", batch_size=2)
    on_dask.predict(remote, 2, ADDRESS)
    shards = [files.read_bytes(f"ram://prediction/out-0000{number}-of-00002.jsonl") for number in range(2)]
    assert b"".join(shards) == predict_at_once(export_dir, texts)


VECTOR_FILES = [("out.jsonl", {"output_format": "original"}), ("out.npy", {}), ("out.npy", {"pooling": "mean"})]


@pytest.mark.usefixtures("one_process", "tiny_encoder")
@pytest.mark.parametrize(("name", "changes"), slow_after(1, VECTOR_FILES))
def test_shards_and_tasks_contain_the_vectors_of_one_run(name: str, changes: dict[str, Any], texts, capsys):
    flags = {"layers": ["-1", "1"], "max_seq_length": 16, "batch_size": 2, **changes}
    options = FeatureOptions("model", f"{texts}/all.txt", f"{texts}/once-{name}", **flags)
    feature_extraction.write_vectors(options)
    options = dataclasses.replace(options, output_file=f"{texts}/{name}")
    for index, count in enumerate((12, 15)):
        told = feature_extraction.write_vectors(options, Shard(index, 2))
        assert told.startswith(f"Wrote the vectors of {count} texts to ")
    assert_shards_hold(texts, name, f"once-{name}")
    options = dataclasses.replace(options, input_file=f"{texts}/[ab].txt", output_file=f"{texts}/tasks-{name}")
    FEATURES.main(options, ShardOptions(dask=ADDRESS, num_shards=2))
    assert f"Wrote 27 texts to {texts}/tasks-" in capsys.readouterr().out
    assert_shards_hold(texts, f"tasks-{name}", f"once-{name}")
    for change in ({"align": "words"}, {"normalize": True}, {"batch_size": 3}, {"layers": ["-1"]}):
        changed = dataclasses.replace(options, **change)
        assert_rejected((f"{options.output_file}.run.json", *change), on_dask.write_vectors, changed, 2, ADDRESS)


@pytest.mark.usefixtures("tiny_encoder")
def test_workers_can_extract_vectors_in_any_folder(texts: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_extractor, "_compile_encoder", lambda *_: None)
    monkeypatch.setattr(on_dask, "_run_on_cluster", lambda computation, *_: computation)
    flags = {"layers": ["-1"], "vocab_file": "vocab.txt", "is_split_into_words": True}
    computation = on_dask.write_vectors(FeatureOptions("model", "words.jsonl", "out.npy", **flags), 1, ADDRESS)
    assert isinstance(computation, on_dask._Extraction)
    sent = computation.options
    assert [sent.init, sent.vocab_file] == [os.path.abspath("model"), os.path.abspath("vocab.txt")]
    assert sent.max_seq_length == 32
    words = [["the", "cat"]]
    assert list(computation.read(write_rows(texts / "words.jsonl", ({"words": each} for each in words)))) == words
    (texts / "out.npy").touch()
    assert not on_dask._is_complete(computation, f"{texts}/out.npy")  # without the file of tokens


def test_the_digest_of_a_model_depends_on_its_weights_vocabulary_and_casing():
    models = [build_encoder(tiny_config(), seed=seed) for seed in (0, 1)]
    tokenizers = [FullTokenizer.from_vocab(VOCAB, do_lower_case=casing) for casing in (True, False)]
    tokenizers.append(FullTokenizer.from_vocab(VOCAB.replace("cat", "cats")))
    loaded = [ModelAndTokenizer(*each) for each in itertools.product(models, [tiny_config()], tokenizers)]
    digests = [on_dask._compute_digest(each) for each in [*loaded, loaded[0]]]
    assert (len(set(digests)), digests[0]) == (6, digests[6])


@pytest.mark.slow
def test_losing_and_adding_workers_does_not_change_answers(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path, [f"{text} {number}" for number in range(100) for text in TEXTS])
    flags = ["--input_file=part*.jsonl", "--output_file=out.jsonl", "--batch_size=2", "--num_shards=40"]
    with dask_clusters.dask_cluster(tmp_path, 3) as cluster:
        command = cluster.command("predict", f"--export_dir={export_dir}", *flags)
        dask_clusters.wait_until(lambda: list(tmp_path.glob("out-*")), "some answers are there")
        cluster.one_worker_lost_one_added(lambda: len(list(tmp_path.glob("out-*"))))
        code, out, errors = dask_clusters.ended(command)
    assert code == 0, errors
    assert "2,700 texts" in out
    assert join_shards(tmp_path, 40) == predict_at_once(export_dir, tmp_path)
