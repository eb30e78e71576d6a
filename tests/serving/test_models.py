"""Versions of models: loaded, replaced during requests, and skipped if damaged."""

import asyncio
import concurrent.futures
import os
import pathlib
import shutil
import time

import numpy as np
import pytest

from official_bert.checkpoints.checksums import CHECKSUM_FILE
from official_bert.serving import batching, metrics, models
from official_bert.serving.options import ServingOptions
from tests.make import assert_rejected, write_text
from tests.serving import served_models
from tests.serving.serving_client import eventually, make_request, read_metric, read_status, running, sent, value


def test_a_model_that_is_not_loaded_yet_returns_retry_after(exports: pathlib.Path):
    with running({"size": exports / "size"}, reload_seconds=1000.0) as (server, client):
        server.models["size"].versions.clear()
        for answer in (client.predict("size", {"instances": ["ab"]}), client.get("/readyz")):
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


def test_no_request_is_lost_when_a_new_version_is_loaded(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path, 1)
    request = make_request("size", {"instances": ["ab"]})
    with (
        running({"size": tmp_path}) as (server, client),
        concurrent.futures.ThreadPoolExecutor(4) as threads,
        sent(client, request[:-9]) as slow,
    ):
        stop = False

        def ask() -> list[float | None]:
            values = []
            while not stop:
                values.append(value(client))
            return values

        asking = [threads.submit(ask) for _ in range(4)]
        for version in (2, 3):
            served_models.versioned(tmp_path, version)
            assert eventually(lambda version=version: value(client) == 1000 * version + 2)
        stop = True
        for each in asking:
            values = each.result()
            assert values == sorted(values)  # Every request was answered, and never by an older version.
            assert set(values) <= {1002, 2002, 3002}
        versions = server.models["size"].versions
        assert eventually(lambda: [each.state for each in versions.values()] == ["END", "END", "AVAILABLE"])
        assert client.get("/v1/models/size/versions/1").status == 404
        assert not hasattr(versions[1], "model")
        slow.sendall(request[-9:])  # begun when version 1 was served
        assert read_status(slow) == 200


def test_a_damaged_version_is_skipped_until_it_is_complete(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path, 1)
    with running({"size": tmp_path}) as (_, client):
        whole = served_models.versioned(tmp_path / "elsewhere", 2)
        (tmp_path / "2").mkdir()
        shutil.copy(whole / "saved_model.pb", tmp_path / "2")
        assert eventually(lambda: "END" in client.get("/v1/models/size").body.decode())
        status = client.get("/v1/models/size").json["model_version_status"][0]
        assert (status["version"], status["status"]["error_code"]) == ("2", "UNKNOWN")
        assert str(tmp_path / "2") in status["status"]["error_message"]
        assert value(client) == 1002
        shutil.copytree(whole / "variables", tmp_path / "2" / "variables")
        assert eventually(lambda: value(client) == 2002)


@pytest.fixture
def watched(tmp_path: pathlib.Path):
    """A model whose versions are in tmp_path / "served", not loaded yet."""
    pools = batching.Pools()
    yield models.Model("size", str(tmp_path / "served"), pools, ServingOptions(model=["a=b"]), metrics.Metrics())
    pools.shut_down()


def kinds_and_states(model: models.Model) -> list[tuple[str, str]]:
    return [(each.model.kind if hasattr(each, "model") else "", each.state) for each in model.versions.values()]


def refresh(model: models.Model, times: int = 1) -> None:
    for _ in range(times):
        asyncio.run(model.refresh())


@pytest.mark.parametrize("rounds", [1, 3])  # number of refreshes with an incomplete copy
def test_a_partially_copied_export_is_loaded_again_when_it_is_complete(watched: models.Model, tmp_path, rounds: int):
    whole, served = served_models.versioned(tmp_path, 2), tmp_path / "served" / "2"
    shutil.copytree(whole, served, ignore=shutil.ignore_patterns("assets.extra", CHECKSUM_FILE))
    refresh(watched, rounds)
    assert kinds_and_states(watched) == ([] if rounds == 1 else [("other", "AVAILABLE")])
    (served / CHECKSUM_FILE).write_text("{")  # truncated
    refresh(watched, rounds)
    shutil.copytree(whole, served, dirs_exist_ok=True)
    refresh(watched, 2)
    assert kinds_and_states(watched) == [("regression", "AVAILABLE")]


def test_a_complete_export_is_loaded_immediately_and_only_once(watched: models.Model, tmp_path: pathlib.Path):
    folder = served_models.versioned(tmp_path / "served", 2)
    refresh(watched)
    (loaded,) = watched.available
    os.utime(folder / CHECKSUM_FILE, ns=(0, 0))
    refresh(watched, 2)
    assert watched.available == [loaded]
    assert kinds_and_states(watched) == [("regression", "AVAILABLE")]


def test_a_model_of_another_tool_is_loaded_once_it_stops_changing(watched: models.Model, tmp_path: pathlib.Path):
    folder = served_models.versioned(tmp_path / "served", 2)
    (folder / CHECKSUM_FILE).unlink()
    (index,) = (folder / "variables").glob("*.index")
    content = index.read_bytes()
    for most in (10, 20, len(content)):  # the file is growing
        index.write_bytes(content[:most])
        refresh(watched)
        assert not watched.versions
    os.utime(index, ns=(0, 0))  # the size was final before the content
    refresh(watched)
    assert not watched.versions
    refresh(watched)
    assert kinds_and_states(watched) == [("regression", "AVAILABLE")]
    shutil.rmtree(folder / "variables")  # a served model goes on
    refresh(watched, 3)
    assert kinds_and_states(watched) == [("regression", "AVAILABLE")]
    assert watched.available[0].model.run({"text": np.array(["ab"], object)})["value"] == [2002]
    assert b'loads_total{model="size",result="failed"} 1.0' in watched._metrics.text()  # tried only once


def test_removing_the_newest_version_restores_the_previous_one(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path, 1)
    with running({"size": tmp_path}) as (server, client):
        served_models.versioned(tmp_path, 2)
        assert eventually(lambda: server.models["size"].versions[1].state == "END")
        assert value(client) == 2002
        (tmp_path / "2").rename(tmp_path / "taken-away")
        assert eventually(lambda: value(client) == 1002)
        assert eventually(lambda: list(server.models["size"].versions) == [1])
        (tmp_path / "1").rename(tmp_path / "taken-away-too")
        time.sleep(0.5)
        assert value(client) == 1002  # the last version remains


def test_the_server_looks_for_versions_again_after_an_error(tmp_path: pathlib.Path, monkeypatch, caplog):
    served_models.versioned(tmp_path, 1)
    with running({"size": tmp_path}) as (_, client), monkeypatch.context() as patch:
        patch.setattr(models, "find_versions", lambda _: 1 / 0)
        assert eventually(lambda: "cannot look for versions" in caplog.messages)
        patch.undo()
        served_models.versioned(tmp_path, 2)
        assert eventually(lambda: value(client) == 2002)


def test_the_newest_versions_are_served(tmp_path: pathlib.Path):
    for version, write in ((1, served_models.versioned), (2, served_models.tagger), (9, served_models.versioned)):
        write(tmp_path, version)
    (tmp_path / "9").rename(tmp_path / "009")
    with running({"size": tmp_path}, versions=2) as (_, client):
        assert [value(client, place) for place in ("size", "size/versions/9", "size/versions/1")] == [9002, 9002, None]
        (listed,) = client.get("/v1/models").json["models"]
        assert (listed["versions"], listed["kind"]) == (["9", "2"], "regression")
        assert read_metric(client, "official_bert_version", "size") == 9


def test_the_server_starts_with_a_model_of_another_tool(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "_ARRIVING_SECONDS", 0.05)
    (served_models.versioned(tmp_path, 2) / CHECKSUM_FILE).unlink()
    with running({"size": tmp_path}, reload_seconds=1000.0) as (_, client):
        assert value(client) == 2002


def test_folders_without_a_model_are_refused(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path / "good", 1)
    (tmp_path / "empty").mkdir()
    for name in ("damaged/1/saved_model.pb", "lite/model.tflite", "good/1/named/model.onnx"):
        write_text(tmp_path / name, "no model")
    for folder, *names in (
        ("none", tmp_path / "none", "exist"),
        (".", tmp_path, "model.onnx", tmp_path / "damaged"),
        ("empty", tmp_path / "empty", "saved_model.pb", "official-bert export"),
        ("good/1", tmp_path / "good/1", tmp_path / "good", "folder"),
        ("good/1/named", tmp_path / "good/1/named", tmp_path / "good/1/named/1"),
        ("lite", tmp_path / "lite", "LiteRT"),
        ("damaged", "m", "version 1", tmp_path / "damaged/1"),
    ):
        assert_rejected((*names,), running({"m": tmp_path / folder}).__enter__)
