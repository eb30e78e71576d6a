"""Dask gives exactly the answers and vectors of one machine, in numbered files, even if workers are lost."""

import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from official_bert.checkpoints import finetuned
from official_bert.errors import UserError
from official_bert.inference import batch_prediction, feature_extraction, on_dask
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions
from official_bert.kinds.names import CLASSIFICATION
from official_bert.utils import dask_cluster, files
from tests import dask_clusters
from tests.conftest import WORDS
from tests.dask_clusters import ENVIRONMENT, DaskCluster, OneProcess, ended, wait_until
from tests.export.exported_models import CONFIG, build_model, make_task_spec
from tests.inference.shard_texts import TEXTS, assert_shards_hold, join_shards, write_texts

ADDRESS = "tcp://127.0.0.1:8786"


@pytest.fixture
def one_process(small_groups: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster that runs every task twice in this process. Groups have four rows, so that a few texts fill several."""
    monkeypatch.setattr(dask_cluster, "Cluster", OneProcess)
    yield
    on_dask._models.clear()


def make_options(export_dir: str, folder: pathlib.Path) -> BatchPredictionOptions:
    return BatchPredictionOptions(export_dir, f"{folder}/part*.jsonl", f"{folder}/out.jsonl", batch_size=2)


def local(export_dir: str, folder: pathlib.Path) -> bytes:
    options = BatchPredictionOptions(export_dir, f"{folder}/all.jsonl", f"{folder}/local.jsonl", batch_size=2)
    batch_prediction.predict(options)
    return (folder / "local.jsonl").read_bytes()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("count", [3, 9])  # nine shards of seven groups: two shards are empty
def test_tasks_that_run_twice_give_the_answers_of_one_machine(count: int, export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    options = make_options(export_dir, tmp_path)
    assert (
        on_dask.predict(options, count, ADDRESS) == f"Wrote 27 texts to {tmp_path}/out-00000-of-0000{count}.jsonl ..."
    )
    assert join_shards(tmp_path, count) == local(export_dir, tmp_path)
    kept, lost = (tmp_path / f"out-0000{number}-of-0000{count}.jsonl" for number in (1, 2))
    inode = kept.stat().st_ino
    lost.unlink()
    told = on_dask.predict(options, count, ADDRESS)
    assert told.endswith(f"; {count - 1} of {count} files from an earlier run")
    assert kept.stat().st_ino == inode
    assert join_shards(tmp_path, count) == local(export_dir, tmp_path)
    assert not list(tmp_path.glob("*.writing-*"))


@pytest.mark.usefixtures("one_process")
def test_single_shard_has_the_plain_name(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    on_dask.predict(make_options(export_dir, tmp_path), 1, ADDRESS)
    assert (tmp_path / "out.jsonl").read_bytes() == local(export_dir, tmp_path)


@pytest.mark.usefixtures("one_process")
def test_shards_of_another_run_are_rejected_and_kept(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    options = make_options(export_dir, tmp_path)
    on_dask.predict(options, 2, ADDRESS)
    before = join_shards(tmp_path, 2)
    with pytest.raises(UserError, match="run.json .* num_shards"):
        on_dask.predict(options, 3, ADDRESS)
    with open(tmp_path / "part1.jsonl", "a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(UserError, match="run.json .* inputs"):
        on_dask.predict(options, 2, ADDRESS)
    (tmp_path / "out.jsonl.run.json").unlink()
    with pytest.raises(UserError, match="00000-of-00002.jsonl exists, but .*run.json"):
        on_dask.predict(options, 2, ADDRESS)
    assert join_shards(tmp_path, 2) == before


@pytest.mark.usefixtures("one_process")
def test_bad_rows_are_reported_with_their_file(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    with open(tmp_path / "part1.jsonl", "a") as file:
        file.write('{"txt": "b"}\n')
    with pytest.raises(UserError, match=r"^[^\n]*part1.jsonl, line 3: no key text[^\n]*$"):
        on_dask.predict(make_options(export_dir, tmp_path), 2, ADDRESS)
    assert not list(tmp_path.glob("out*"))
    write_texts(tmp_path, [*TEXTS[:11], "refused", *TEXTS])  # the first row of its file
    with pytest.raises(UserError, match=r"part2.jsonl: the model cannot answer row 1 \(not counting the header\)"):
        on_dask.predict(make_options(export_dir, tmp_path), 2, ADDRESS)


@pytest.mark.usefixtures("one_process")
def test_unwritable_shard_is_reported_in_one_line(
    export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(on_dask._Prediction, "write", refuse)
    write_texts(tmp_path)
    with pytest.raises(UserError, match="^A worker could not read or write a file: .*No space left on device$"):
        on_dask.predict(make_options(export_dir, tmp_path), 2, ADDRESS)


@pytest.mark.usefixtures("one_process")
def test_paths_may_be_remote(export_dir: str, tmp_path: pathlib.Path):
    # TensorFlow's in-memory file system replaces a remote one.
    write_texts(tmp_path)
    for path in tmp_path.glob("part*"):
        files.copy(str(path), f"ram://prediction/{path.name}")
    remote = BatchPredictionOptions(export_dir, "ram://prediction/part*", "ram://prediction/out.jsonl", batch_size=2)
    on_dask.predict(remote, 2, ADDRESS)
    shards = [files.read_bytes(f"ram://prediction/out-0000{number}-of-00002.jsonl") for number in range(2)]
    assert b"".join(shards) == local(export_dir, tmp_path)


@pytest.mark.usefixtures("one_process", "tiny_encoder")
@pytest.mark.parametrize(("name", "changes"), [
    ("out.jsonl", {"output_format": "original"}),
    pytest.param("out.npy", {}, marks=pytest.mark.slow),
    pytest.param("out.npy", {"pooling": "mean"}, marks=pytest.mark.slow),
])  # fmt: skip
def test_tasks_that_run_twice_give_the_vectors_of_one_machine(
    name: str, changes: dict[str, Any], tmp_path: pathlib.Path
):
    for path, texts in (("a.txt", TEXTS[:5]), ("b.txt", TEXTS[5:]), ("all", TEXTS)):
        (tmp_path / path).write_text("".join(f"{text}\n" for text in texts))
    init = str(tmp_path / "model")
    changes = {"layers": ["-1", "1"], "max_seq_length": 16, "batch_size": 2, **changes}
    feature_extraction.write_features(FeatureOptions(init, f"{tmp_path}/all", f"{tmp_path}/local-{name}", **changes))
    options = FeatureOptions(init, f"{tmp_path}/[ab].txt", f"{tmp_path}/{name}", **changes)
    assert on_dask.write_features(options, 2, ADDRESS).startswith("Wrote 27 texts to ")
    assert_shards_hold(tmp_path, name, f"local-{name}")


@pytest.mark.slow
def test_losing_and_adding_workers_does_not_change_answers(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path, [f"{text} {number}" for number in range(100) for text in TEXTS])
    flags = [
        f"--export_dir={export_dir}", "--input_file=part*.jsonl", "--output_file=out.jsonl", "--batch_size=2",
        "--num_shards=40",
    ]  # fmt: skip
    with dask_clusters.dask_cluster(tmp_path, 3) as cluster:
        predict(cluster, tmp_path, flags)
    assert join_shards(tmp_path, 40) == local(export_dir, tmp_path)


def predict(cluster: DaskCluster, folder: pathlib.Path, flags: list[str]) -> None:
    command = cluster.command("predict", *flags)
    wait_until(lambda: list(folder.glob("out-*")), "some answers are there")
    cluster.one_worker_lost_one_added(lambda: len(list(folder.glob("out-*"))))
    code, out, errors = ended(command)
    assert code == 0, errors
    assert "2,700 texts" in out


@pytest.mark.slow
def test_vectors_are_those_of_one_machine(tmp_path: pathlib.Path):
    model, task_spec = build_model(CLASSIFICATION), make_task_spec(CLASSIFICATION)
    finetuned.save(f"{tmp_path}/model", model, task_spec, CONFIG, "\n".join(WORDS) + "\n")
    texts = [" ".join(WORDS[5 + number % 7 : 7 + number * 3 % 11]) + "\n" for number in range(200)]
    (tmp_path / "a.txt").write_text("".join(texts[:77]))
    (tmp_path / "b.txt").write_text("".join(texts[77:]))
    (tmp_path / "all.txt").write_text("".join(texts))
    flags = ["--init=model", "--layers=-1", "--pooling=mean", "--max_seq_length=16", "--batch_size=1"]
    command = [sys.executable, "-m", "official_bert_cli", "features", *flags]
    one_machine = [*command, "--input_file=all.txt", "--output_file=local.npy"]
    subprocess.run(one_machine, check=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True)
    with dask_clusters.dask_cluster(tmp_path, 2) as cluster:
        more = ["--input_file=[ab].txt", "--output_file=out.npy", "--num_shards=3"]
        code, _, errors = ended(cluster.command("features", *flags, *more))
    assert code == 0, errors
    shards = [np.load(tmp_path / f"out-0000{number}-of-00003.npy") for number in range(3)]
    np.testing.assert_allclose(np.concatenate(shards), np.load(tmp_path / "local.npy"), atol=1e-6)
