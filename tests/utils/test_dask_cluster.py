"""The --dask flag, and the checks before the first task."""

import functools
import itertools
import socket
import sys
from unittest import mock

import distributed
import pytest

from official_bert.errors import UserError
from official_bert.utils import dask_cluster, progress
from official_bert.utils.dask_cluster import DaskOptions
from tests.make import assert_mentions, assert_rejected, refusal, write_text

ADDRESS = "tcp://127.0.0.1:8786"


def test_only_addresses_of_schedulers_are_accepted():
    for address in ("", "host", "host:8786", "tcp://host", "http://host:8786", "tcp://:8786", "tcp://a:123456"):
        assert_rejected(("--dask", f"'{address}'", "tcp://HOST:8786"), DaskOptions, address)
    for valid in (ADDRESS, "tls://scheduler:8786"):
        assert DaskOptions(valid).dask == valid


def test_a_missing_scheduler_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dask_cluster, "_CONNECT_TIMEOUT", 0.3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        (line,) = refusal(dask_cluster.Cluster(address).__enter__).splitlines()
    assert_mentions(line, f"--dask={address}", 0.3)


def make_client(scheduler: object, *answers: object) -> mock.Mock:
    """Returns a client whose scheduler and workers give these answers. The scheduler raises an exception."""
    client = mock.Mock()
    client.run_on_scheduler.side_effect = [scheduler]
    client.run.return_value = {f"tcp://worker{number}:1": answer for number, answer in enumerate(answers)}
    return client


@pytest.mark.parametrize(("answer", "name"), [
    ("official_bert 0.0.1 (code 0) on Python 3.11", "0.0.1 (code 0)"), (OSError("overload"), "overload"),
    (ModuleNotFoundError("No module named 'official_bert'"), "'official_bert'"),
])  # fmt: skip
def test_a_process_with_a_different_version_is_reported_before_the_first_task(answer: object, name: str):
    cluster, same = dask_cluster.Cluster(ADDRESS), dask_cluster.code_identity()
    cluster._client = make_client(same, same)
    cluster._check_versions()
    cluster._client.run.assert_called_once_with(mock.ANY, on_error="return")
    cluster._client = make_client(same, same, answer)
    assert_rejected(("tcp://worker1:1", name), cluster._check_versions)
    cluster._client = make_client(answer, same)
    assert_rejected(("scheduler", name), cluster._check_versions)


def test_a_worker_that_joins_later_is_checked_by_its_first_task():
    done: list[int] = []
    dask_cluster.run_task(dask_cluster.code_identity(), done.append, 1)
    names = (dask_cluster.code_identity(), "official_bert 0.0.1")
    assert_rejected(names, dask_cluster.run_task, "official_bert 0.0.1", done.append, 2)
    assert done == [1]


def test_the_identity_depends_on_all_code_and_on_the_version_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_cluster, "__file__", str(tmp_path / "official_bert" / "utils" / "dask_cluster.py"))
    found = set()
    for name, text in (("official_bert/a.py", ""), ("official_bert/a.py", "1"), ("data_gen/rules/b.py", "")):
        write_text(tmp_path / name, text)
        found.add(dask_cluster.code_identity.__wrapped__())
    (tmp_path / "data_gen" / "rules" / "b.py").rename(tmp_path / "data_gen" / "b.py")
    found.add(dask_cluster.code_identity.__wrapped__())
    assert len(found) == 4
    assert all(each.endswith("Python {}.{}".format(*sys.version_info)) for each in found)


def test_a_cluster_without_workers_or_with_other_code_is_disconnected(monkeypatch):
    client = make_client(dask_cluster.code_identity(), "other")
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: client)
    assert_rejected(("tcp://worker0:1", "other"), dask_cluster.Cluster(ADDRESS).__enter__)
    client.wait_for_workers.side_effect = TimeoutError
    assert_rejected((ADDRESS, 60), dask_cluster.Cluster(ADDRESS).__enter__)
    assert client.close.call_count == 2


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> dask_cluster.Cluster:
    """A cluster that has begun task 0, and whose tasks finish in reverse order."""
    keys = itertools.count()

    def submit(*task: object, pure: bool) -> mock.Mock:
        assert not pure  # otherwise Dask runs equal tasks once
        return mock.Mock(key=next(keys), result=functools.partial(*task))

    monkeypatch.setattr(distributed, "as_completed", reversed)
    cluster = dask_cluster.Cluster(ADDRESS)
    cluster._client = mock.MagicMock(submit=submit, status="running")
    cluster._client.processing.return_value = {"worker": [0]}
    return cluster


def test_results_are_in_the_order_of_the_tasks(cluster, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    for amounts, shown in (([1.0, 3.0], ["3 of 4", "4 of 4"]), (None, ["1 of 2", "2 of 2"])):
        assert cluster.run_tasks("work", pow, [(2, 3), (3, 2)], "MB", amounts) == [8, 9]
        assert [line[6:12] for line in capsys.readouterr().err.splitlines()] == shown


_HINT = dask_cluster.RESUME_HINT


@pytest.mark.parametrize(("error", "status", "names"), [
    (ValueError("bad"), "running", ["bad"]), (ValueError("bad"), "closed", [ADDRESS, _HINT]),
    (distributed.scheduler.KilledWorker("a", mock.Mock(), 3), "running", ["task 2", _HINT]),
    (ImportError("'bad'"), "running", ["'bad'", dask_cluster.code_identity(), _HINT]),
    (distributed.client.FutureCancelledError("a", ""), "running", [ADDRESS, _HINT]),
    (distributed.comm.core.CommClosedError(), "running", [ADDRESS, _HINT]),
])  # fmt: skip
def test_a_failed_task_stops_the_others_unless_the_connection_is_lost(error, status, names, cluster, monkeypatch):
    wait = mock.Mock()
    monkeypatch.setattr(distributed, "wait", wait)
    cluster._client.status = status
    with pytest.raises((UserError, ValueError)) as caught:
        cluster.run_tasks("work", mock.Mock(side_effect=error), [()] * 3, "MB")
    assert isinstance(caught.value, UserError) == (_HINT in names)
    assert_mentions(str(caught.value), *names)
    calls = [*cluster._client.cancel.call_args_list, *wait.call_args_list]
    is_lost = status == "closed" or isinstance(error, distributed.comm.core.CommClosedError)
    # Tasks that have not begun are canceled, and the others awaited.
    assert [[future.key for future in call.args[0]] for call in calls] == ([] if is_lost else [[1, 2], [0]])
