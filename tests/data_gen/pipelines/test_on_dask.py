"""A Dask cluster makes the same records as one machine, even if workers or the scheduler are lost."""

import os
import pathlib
from unittest import mock

import pytest

from data_gen.options import RecordOptions
from data_gen.pipelines import on_dask, run_plan
from data_gen.pipelines.worker import TextError
from official_bert.errors import UserError
from official_bert.utils import dask_cluster
from tests import dask_clusters
from tests.dask_clusters import OneProcess, ended, wait_until
from tests.data_gen.samples import contents, make_command, make_options, make_records
from tests.make import assert_mentions, assert_rejected, refusal, slow_after, write_text

ADDRESS = "tcp://127.0.0.1:8786"


@pytest.fixture
def many(corpus, tmp_path) -> list[str]:
    """The command that makes the records in `many`, after one machine has made the same records in `one`."""
    flags = {"dupe_factor": 20, "block_tokens": 1500}
    make_records(corpus, tmp_path / "one", **flags)
    return make_command(make_options(corpus, tmp_path / "many", **flags))


def count_blocks(folder: pathlib.Path) -> int:
    return len(list(folder.glob("many/out.work/*/spooled-*")))


@pytest.mark.parametrize("changes", slow_after(1, [
    {},
    {"gzip": True, "do_whole_word_mask": True, "dupe_factor": 1, "sentence_objective": "none"},
    {"num_shards": 1, "shard_size_mb": 1, "masking": "dynamic", "masking_rates": "80/0/20"},
]))  # fmt: skip
def test_tasks_that_run_twice_do_not_change_records(corpus, changes, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_cluster, "Cluster", OneProcess)
    make_records(corpus, tmp_path / "one", **changes)
    monkeypatch.setattr(run_plan, "_BUCKET_BYTES", 1e5)  # Several buckets per shard.
    monkeypatch.chdir(tmp_path)
    relative = [os.path.relpath(path) for path in corpus[0]], os.path.relpath(corpus[1])
    many = make_options(relative, pathlib.Path("many"), num_workers=RecordOptions.num_workers, **changes)
    on_dask.create_pretraining_data(many, ADDRESS)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("namespaces", [False, True], ids=["loopback", "network namespaces"])
def test_losing_and_adding_workers_does_not_change_records(many, namespaces, tmp_path):
    with dask_clusters.dask_cluster(tmp_path, 3, namespaces) as cluster:
        command = cluster.command(*many)
        wait_until(lambda: count_blocks(tmp_path) > 5, "some blocks are made")
        cluster.one_worker_lost_one_added(lambda: count_blocks(tmp_path))
        assert not (tmp_path / "many" / "out.manifest.json").exists()
        code, out, errors = ended(command)
    assert (code, errors) == (0, []), "\n".join([out, *errors])
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


@pytest.mark.slow
def test_a_lost_scheduler_is_reported_and_the_same_command_continues(many, tmp_path):
    with dask_clusters.dask_cluster(tmp_path, 3) as cluster:
        command = cluster.command(*many)
        wait_until(lambda: count_blocks(tmp_path) > 5, "some blocks are made")
        cluster.scheduler.kill()
        code, _, (error,) = ended(command)
        assert_mentions(error, cluster.address)
        assert (code, error.endswith(dask_cluster.RESUME_HINT)) == (1, True)
        assert count_blocks(tmp_path) > 5
        for worker in cluster.workers:
            worker.kill()
        cluster.start_scheduler()
        cluster.add_worker()
        code, out, errors = ended(cluster.command(*many))
    assert (code, errors) == (0, [])
    assert "resuming the unfinished work" in out
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


@pytest.mark.slow
def test_an_error_in_the_text_is_reported_in_one_line_and_leaves_no_files(corpus, tmp_path):
    text = write_text(tmp_path / "text.txt", b"the cat .\n\xff sat .\n")
    with dask_clusters.dask_cluster(tmp_path, 1) as cluster:
        options = make_options(([corpus[0][0], text], corpus[1]), tmp_path / "many")
        code, _, (error,) = ended(cluster.command(*make_command(options)))
    assert_mentions(error, text, "line 2")
    assert (code, list((tmp_path / "many").iterdir())) == (1, [])


def test_a_folder_that_a_worker_cannot_access_is_named(tmp_path):
    folder = str(tmp_path / "there")
    assert_rejected((folder, "--output_file"), on_dask._run_task, folder, "run", {"file": [0]})


def test_a_worker_runs_one_task_at_a_time(tmp_path, monkeypatch):
    run_task = mock.Mock(side_effect=lambda task: on_dask._one_task.locked())
    monkeypatch.setattr(on_dask, "_get_worker", lambda *_: mock.Mock(run_task=run_task))
    assert on_dask._run_task(str(tmp_path), "run", {"file": [0]})


def test_errors_tell_once_how_to_continue_except_for_unusable_text(tmp_path):
    hint = dask_cluster.RESUME_HINT
    for error, count in ((UserError("Full."), 1), (UserError(f"Lost. {hint}"), 1), (TextError("Not UTF-8."), 0)):
        pool = on_dask.DaskPool(mock.Mock(run_tasks=mock.Mock(side_effect=error)), str(tmp_path))
        assert refusal(pool.run_tasks, "reading", [], "files").count(hint) == count


@pytest.mark.parametrize("changes", [{"num_workers": 77}, {"algorithm": "reference"}])
def test_flags_for_a_single_machine_are_rejected(changes):
    options = RecordOptions(["text"], ["records"], "vocab", **changes)
    assert_rejected((f"--{next(iter(changes))}", "--dask"), on_dask.create_pretraining_data, options, ADDRESS)
