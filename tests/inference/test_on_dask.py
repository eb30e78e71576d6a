"""Dask gives the very answers and vectors of one machine, in numbered files, whatever happens to workers."""

import json
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from official_bert.checkpoints import finetuned
from official_bert.errors import UserError
from official_bert.inference import batch_prediction, dask_shards, on_beam
from official_bert.inference.options import BatchPredictionOptions
from official_bert.modeling.task_models import CLASSIFICATION
from official_bert.utils import dask_cluster
from tests import dask_clusters
from tests.conftest import WORDS
from tests.dask_clusters import ENVIRONMENT, DaskCluster, ended, wait_until
from tests.export.exported_models import CONFIG, model_of, task_spec_of
from tests.inference.batch_models import export_batches

DASK = ["--runner=dask", "--dask_address=tcp://127.0.0.1:8786"]
TEXTS = ["the cat " * (number * 7 % 11) + f"sat {number}" for number in range(640)]


class OneProcess:
    """A cluster whose worker is this process; what comes and goes is pickled, and every task runs twice."""

    def __init__(self, address: str) -> None:
        del address

    def __enter__(self) -> "OneProcess":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def do_all(self, what: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], unit: str) -> list[Any]:
        del what, unit
        results = []
        for task in tasks:
            for _ in range(2):
                sent, arguments = pickle.loads(pickle.dumps((function, task)))
                result = pickle.loads(pickle.dumps(sent(*arguments)))
            results.append(result)
        return results


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return export_batches(tmp_path_factory.mktemp("export"))


def write_texts(folder: pathlib.Path, texts: list[str] = TEXTS) -> None:
    """Writes texts as one file and as three of unequal sizes."""
    rows = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "all.jsonl").write_text("".join(rows))
    for number, (start, end) in enumerate([(0, 90), (90, 92), (92, len(rows))]):
        (folder / f"part{number}.jsonl").write_text("".join(rows[start:end]))


def joined(folder: pathlib.Path, count: int) -> bytes:
    return b"".join((folder / f"out-{number:05}-of-{count:05}.jsonl").read_bytes() for number in range(count))


def local(export_dir: str, folder: pathlib.Path) -> bytes:
    options = BatchPredictionOptions(export_dir, f"{folder}/all.jsonl", f"{folder}/local.jsonl", batch_size=1)
    batch_prediction.predict(options)
    return (folder / "local.jsonl").read_bytes()


def test_tasks_that_run_twice_give_the_answers_of_one_machine(
    export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dask_cluster, "Cluster", OneProcess)
    write_texts(tmp_path)
    options = BatchPredictionOptions(export_dir, f"{tmp_path}/part*.jsonl", f"{tmp_path}/out.jsonl", batch_size=1)
    assert on_beam.predict(options, 7, DASK).endswith("out-00000-of-00007.jsonl ...: of 640 texts")
    assert joined(tmp_path, 7) == local(export_dir, tmp_path)
    kept, again = tmp_path / "out-00002-of-00007.jsonl", tmp_path / "out-00004-of-00007.jsonl"
    number = kept.stat().st_ino
    again.unlink()
    assert on_beam.predict(options, 7, DASK).endswith("; 6 of 7 files from an earlier run")
    assert kept.stat().st_ino == number
    assert joined(tmp_path, 7) == local(export_dir, tmp_path)
    assert not list(tmp_path.glob("*.dask-*")) + list(tmp_path.glob("*error*"))


def test_wrong_rows_are_one_line_with_their_file(
    export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dask_cluster, "Cluster", OneProcess)
    options = BatchPredictionOptions(export_dir, f"{tmp_path}/part*.jsonl", f"{tmp_path}/out.jsonl", batch_size=1)
    write_texts(tmp_path, [*TEXTS[:92], "refused", *TEXTS])
    with pytest.raises(UserError, match=r"part2.jsonl: the model cannot answer row 1 \(the header does not count\)"):
        on_beam.predict(options, 2, DASK)
    assert not list(tmp_path.glob("*.dask-*")) + list(tmp_path.glob("*error*"))
    dask_shards._models.clear()


@pytest.mark.slow
def test_a_worker_lost_and_one_added_give_the_answers_of_one_machine(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    flags = [
        f"--export_dir={export_dir}", "--input_file=part*.jsonl", "--output_file=out.jsonl", "--batch_size=1",
        "--num_shards=40", "--beam",
    ]  # fmt: skip
    with dask_clusters.dask_cluster(tmp_path, 3) as cluster:
        predict(cluster, tmp_path, flags)
    assert joined(tmp_path, 40) == local(export_dir, tmp_path)


def predict(cluster: DaskCluster, folder: pathlib.Path, flags: list[str]) -> None:
    command = cluster.command("predict", *flags)
    wait_until(lambda: list(folder.glob("out-*")), "some answers are there")
    cluster.one_worker_lost_one_added(lambda: len(list(folder.glob("out-*"))))
    code, out, errors = ended(command)
    assert code == 0, errors
    assert "of 640 texts" in out


@pytest.mark.slow
def test_vectors_are_those_of_one_machine(tmp_path: pathlib.Path):
    model, task_spec = model_of(CLASSIFICATION), task_spec_of(CLASSIFICATION)
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
        more = ["--input_file=[ab].txt", "--output_file=out.npy", "--beam", "--num_shards=3"]
        code, _, errors = ended(cluster.command("features", *flags, *more))
    assert code == 0, errors
    shards = [np.load(tmp_path / f"out-0000{number}-of-00003.npy") for number in range(3)]
    np.testing.assert_allclose(np.concatenate(shards), np.load(tmp_path / "local.npy"), atol=1e-6)
