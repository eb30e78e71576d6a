"""The --dask flag, and the checks before the first task."""

import socket
from unittest import mock

import pytest

from official_bert.utils import dask_cluster
from official_bert.utils.dask_cluster import DaskOptions
from tests.make import assert_mentions, assert_rejected, refusal

ADDRESS = "tcp://127.0.0.1:8786"


@pytest.mark.parametrize("address", ["", "host", "host:8786", "tcp://host", "http://host:8786"])
def test_only_addresses_of_schedulers_are_accepted(address: str):
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
    ("official_bert 0.0.1 (code 0) on Python 3.11", "0.0.1 (code 0)"),
    (ModuleNotFoundError("No module named 'official_bert'"), "'official_bert'"),
    (OSError("overload"), "overload"),
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
