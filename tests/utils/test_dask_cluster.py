"""Dask's options, and the refusals before a task runs."""

import socket

import pytest

from official_bert.errors import UserError
from official_bert.utils import dask_cluster

ADDRESS = "tcp://127.0.0.1:8786"


@pytest.mark.parametrize("runner", ["dask", "DaskRunner", "apache_beam.runners.dask.dask_runner.DaskRunner"])
def test_the_address_is_taken_from_beams_options(runner: str):
    assert dask_cluster.address_in([f"--runner={runner}", f"--dask_address={ADDRESS}"]) == ADDRESS
    assert dask_cluster.address_in(["--dask_address", ADDRESS, "--runner", runner]) == ADDRESS


def test_other_runners_are_beams():
    assert dask_cluster.address_in([]) is None
    assert dask_cluster.address_in(["--runner=DataflowRunner", "--project=name"]) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--runner=dask"], "--dask_address is ''; --runner=dask expects tcp://HOST:PORT"),
        (["--runner=dask", "--dask_address=host"], "--dask_address is 'host'; --runner=dask expects tcp://HOST:PORT"),
        ([f"--dask_address={ADDRESS}"], "goes with --runner=dask; --runner is not given"),
        ([f"--dask_address={ADDRESS}", "--runner=FlinkRunner"], "--runner is FlinkRunner"),
        (["--runner=dask", f"--dask_address={ADDRESS}", "--project=name"], "unexpected argument '--project=name'"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], words: str):
    with pytest.raises(UserError, match=words):
        dask_cluster.address_in(arguments)


def test_an_address_without_a_scheduler_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UserError, match=f"^no scheduler answers at --dask_address={address} within 1 s; .*$"):
            dask_cluster.Cluster(address).__enter__()


class Client:
    """Workers that have something else than the package that this process has."""

    def __init__(self, *answers: object) -> None:
        self._answers = {f"tcp://worker{number}:1": answer for number, answer in enumerate(answers)}

    def run(self, function: object, on_error: str) -> dict[str, object]:
        assert (callable(function), on_error) == (True, "return")
        return self._answers


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ("official_bert 0.0.1 (code 0) on Python 3.11", "tcp://worker1:1 has official_bert 0.0.1 .*, but the command"),
        (ModuleNotFoundError("No module named 'official_bert'"), "tcp://worker1:1 has not this package .*; install"),
        (OSError("too many open files"), "tcp://worker1:1 cannot say its version .*too many open files"),
    ],
    ids=["version", "missing", "failing"],
)
def test_a_worker_with_another_version_is_named_before_the_first_task(there: object, words: str):
    cluster = dask_cluster.Cluster(ADDRESS)
    cluster._client = Client(dask_cluster.code_identity(), there)
    with pytest.raises(UserError, match=words):
        cluster._check_workers()
    cluster._client = Client(dask_cluster.code_identity())
    cluster._check_workers()


def test_a_worker_that_joins_later_is_checked_by_its_first_task():
    done: list[int] = []
    dask_cluster.do_task(dask_cluster.code_identity(), done.append, 1)
    with pytest.raises(UserError, match="has official_bert .*, but the command official_bert 0.0.1; install the same"):
        dask_cluster.do_task("official_bert 0.0.1", done.append, 2)
    assert done == [1]
