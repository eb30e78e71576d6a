import contextlib
import json
import pathlib
import sys
import uuid
from importlib import metadata
from unittest import mock

import fsspec
import pytest
import tensorflow as tf

from data_gen.text.formats import read_documents
from official_bert.errors import UserError
from official_bert.utils import extras, files
from tests.make import ROOT, assert_mentions, assert_rejected, write_text

_S3 = pytest.param("s3", marks=pytest.mark.slow)


@pytest.fixture(params=[_S3, "memory", "ram"])  # an object store, another fsspec file system, and TensorFlow's own
def remote(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/folder"
    return f"{request.param}://{uuid.uuid4().hex}/folder"


def test_files_are_written_read_listed_and_removed_on_every_file_system(remote: str):
    folder, path = f"{remote}/inner", f"{remote}/inner/a [1].txt"
    assert not files.exists(path)
    files.make_folder(folder)
    files.write_text(path, "first")
    size, time = files.size_and_time(path)
    assert time > 10**18 or remote.startswith("ram:")  # nanoseconds; files in ram: have no time
    files.write_text(path, "the second")
    assert (size, files.size(path)) == (5, 10)
    assert files.size_and_time(path)[1] >= time
    assert (files.list_folder(remote), files.list_folder(folder)) == (["inner"], ["a [1].txt"])
    assert (files.is_folder(folder), files.is_folder(path)) == (True, False)
    files.copy(path, f"{folder}/0.txt")
    first, second = files.expand([f"{folder}/*.txt"], "input_file")
    assert (first.rpartition("/")[2], list(read_documents(second))) == ("0.txt", [["the second"]])
    assert_rejected(f"{folder}/*.json", files.expand, [f"{folder}/*.json"], "input_file")
    files.copy(path, f"{remote}/b")
    assert files.work_path(f"{remote}/b") != files.work_path(f"{folder}/b")
    for _ in range(2):
        files.remove(path)
        assert not files.exists(path)
    assert files.read_bytes(f"{remote}/b") == b"the second"
    files.remove_folder(remote)
    assert not files.exists(f"{remote}/b")
    assert_rejected((f"{remote}/b", "exist"), files.read_text, f"{remote}/b")


def test_unusual_results_of_a_store(monkeypatch: pytest.MonkeyPatch):
    store, path = fsspec.filesystem("memory"), "memory://x"
    monkeypatch.setattr(store, "size", lambda path: None)
    assert_rejected((path, "size"), files.size, path)
    monkeypatch.setattr(store, "find", lambda path, detail: {"/x/../../y": {}})
    assert_rejected((path, "'/x/../../y'"), files.local_copy, path)
    monkeypatch.setattr(store, "ls", lambda path, detail: ["/x", "/x/a", "/x/b/"])  # made as an empty file
    assert files.list_folder(path) == ["a", "b"]
    for error, reason in ((Exception("two\n lines"), "two lines"), (RuntimeError(), "RuntimeError")):
        monkeypatch.setattr(store, "ls", mock.Mock(side_effect=error))
        assert_rejected((path, reason), files.list_folder, path)
    with monkeypatch.context() as patch:  # as a store does for a missing bucket
        patch.setattr(store, "put_file", mock.Mock(side_effect=FileNotFoundError("no bucket")))
        assert_rejected((f"{path}/a", "no bucket"), files.write_text, f"{path}/a", "")
    monkeypatch.setattr(store, "invalidate_cache", mock.Mock())
    monkeypatch.setattr(type(store), "mv", mock.Mock())  # a store with its own method
    files.write_text(f"{path}/a", "")
    assert store.mv.call_args.args[1] == f"{path}/a"
    store.invalidate_cache.assert_called()


@pytest.mark.parametrize(("scheme", "owner", "operation"), [
    ("ram", tf.io.gfile, "copy"), ("ram", tf.io.gfile, "rename"),
    ("memory", fsspec.filesystem("memory"), "put_file"), ("memory", fsspec.filesystem("memory"), "cp_file"),
])  # fmt: skip
def test_a_failed_upload_is_explained_and_leaves_no_temporary_file(scheme: str, owner, operation: str, monkeypatch):
    folder = f"{scheme}://{uuid.uuid4().hex}"
    files.write_text(f"{folder}/old", "")
    monkeypatch.setattr(owner, operation, mock.Mock(side_effect=FileNotFoundError("no such bucket")))
    assert_rejected((f"{folder}/new", "no such bucket"), files.write_text, f"{folder}/new", "")
    assert files.list_folder(folder) == ["old"]


@pytest.mark.parametrize("protocol", ["abfs", ("s3", "s3a")])
def test_files_are_uploaded_to_object_stores_directly(protocol: str | tuple[str, ...], monkeypatch):
    store, folder = fsspec.filesystem("memory"), f"memory://{uuid.uuid4().hex}"
    monkeypatch.setattr(type(store), "protocol", protocol)
    monkeypatch.setattr(store, "cp_file", None)
    files.make_folder(folder)
    assert not files.exists(folder)
    files.write_text(f"{folder}/a", "text")
    assert files.read_text(f"{folder}/a") == "text"


def test_a_failed_write_leaves_no_file_and_keeps_the_old_one(remote: str):
    path = f"{remote}/answers"
    for before in (None, "whole"):
        if before:
            files.write_text(path, before)
        with contextlib.suppress(UserError), files.write_atomically(path) as beside:
            pathlib.Path(beside).write_text("half")
            raise UserError("given up")
        assert files.list_folder(remote) == ["answers"] if before else not files.exists(path)
    assert files.read_text(path) == "whole"


def test_folders_are_uploaded_completely_and_interrupted_uploads_are_replaced(remote: str, monkeypatch):
    with files.write_folder_atomically(remote) as local:
        write_text(pathlib.Path(local, "inner", "a"), "a")
        write_text(pathlib.Path(local, "b"), "b")
    assert files.list_folder(remote) == ["b", "inner"]
    assert files.read_text(f"{remote}/inner/a") == "a"
    assert_rejected((remote, "exists"), files.write_folder_atomically(remote).__enter__)
    files.write_text(f"{remote}/{files._UPLOADING}", "")  # as if the upload had been killed
    assert_rejected((remote, "complete"), files.local_copy, remote)
    with files.write_folder_atomically(remote) as local:
        write_text(pathlib.Path(local, "c"), "")
    assert files.list_folder(remote) == ["c"]
    remove, failed = files.remove, f"{remote}-failed"

    def refuse(path: str) -> None:
        assert (files.list_folder(failed), files.is_unfinished(failed)) == ([files._UPLOADING, "d"], True)
        raise OSError("refused")

    monkeypatch.setattr(files, "remove", refuse)
    with pytest.raises(UserError, match=f"{failed}.*refused"), files.write_folder_atomically(failed) as local:
        write_text(pathlib.Path(local, "d"), "")
    monkeypatch.setattr(files, "remove", remove)
    assert not files.exists(failed)


@pytest.mark.parametrize("remote", [_S3, "memory"], indirect=True)
def test_local_copies_are_cached_until_the_remote_files_change_and_brackets_in_names_are_not_a_pattern(remote: str):
    folder = f"{remote}/model [1]"
    for path in (folder, f"{folder}/inner", f"{remote}/model 1"):
        files.write_text(f"{path}/a..b", path)
    copy = files.local_copy(f"{folder}/")
    assert pathlib.Path(copy, "a..b").read_text() == folder
    assert pathlib.Path(copy, "inner", "a..b").read_text() == f"{folder}/inner"
    assert files.local_copy(folder) == copy
    files.write_text(f"{folder}/inner/a..b", "the second")
    assert pathlib.Path(files.local_copy(folder), "inner", "a..b").read_text() == "the second"
    assert pathlib.Path(files.local_copy(f"{folder}/a..b")).read_text() == folder
    assert files.local_copy(f"{remote}/none") == f"{remote}/none"
    files.remove_folder(folder)
    assert files.list_folder(remote) == ["model 1"]


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_a_missing_bucket_is_reported():
    assert_rejected(("s3://no-such-bucket/folder/a", "bucket"), files.write_text, "s3://no-such-bucket/folder/a", "")
    files.make_folder("s3://no-such-bucket/folder")
    assert not files.exists("s3://no-such-bucket")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    registry = sys.modules["fsspec.registry"]  # the package's attribute of that name is the mapping itself
    for name in ("registry", "_registry"):
        monkeypatch.setattr(registry, name, {})
    assert_rejected(("s3fs", f"{ROOT}[remote]"), files.exists, "s3://bucket/a")
    assert_rejected(("unknown://a", "Protocol"), files.exists, "unknown://a")


WHEEL = "file:///dist/official_bert-0.1.0-py3-none-any.whl"


@pytest.mark.parametrize(("source", "requirement"), [
    (None, "official-bert[serve]"),
    ({"url": WHEEL, "archive_info": {}}, f"official-bert[serve] @ {WHEEL}"),
    ({"url": "https://host/a.git", "vcs_info": {"vcs": "git"}}, "official-bert[serve] @ git+https://host/a.git"),
])  # fmt: skip
def test_extras_are_installed_from_the_source_of_the_package(source, requirement: str, tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(tmp_path))
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "official_bert" / "utils" / "extras.py"))
    if source:
        (tmp_path / "direct_url.json").write_text(json.dumps(source))
    message = str(extras.explain_missing_package(ModuleNotFoundError(name="aiohttp.web"), "serve"))
    assert_mentions(message, "aiohttp", f"pip install '{requirement}'")
