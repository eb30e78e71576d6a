import contextlib
import hashlib
import os
import pathlib
from unittest import mock

import pytest
import tensorflow as tf

from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.utils import files, streams
from tests.make import assert_mentions, assert_rejected, refusal, write_text


def test_an_input_file_is_recognized_under_any_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("in", "other"):
        (tmp_path / name).touch()
    for name, target in (("link", "in"), ("dangling", "new"), ("linked-folder", "folder")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "hard").hardlink_to(tmp_path / "in")
    refuse = lambda path, *inputs: files.refuse_overwriting(path, "output_file", inputs)  # noqa: E731
    for path in ("in", "./in", "folder/../in", str(tmp_path / "in"), "link", "hard"):
        assert_rejected(("--output_file", path), refuse, path, "other", "in")
    for path in ("other", "folder/in", "new"):
        refuse(path, "in")
    # Files that do not exist yet, such as two files that a run is about to write.
    remote = ("gs://bucket/a/../b", "gs://bucket//b")
    for paths in (("dangling", "new"), ("linked-folder/new", "folder/new"), remote):
        assert_rejected(paths, refuse, *paths)
    refuse("gs://bucket/b", "gs://other/b", "s3://bucket/b")


def test_sha256_hashes_the_content_of_a_file(tmp_path: pathlib.Path):
    assert files.sha256(write_text(tmp_path / "a", "abc")).startswith("ba7816bf8f01cfea414140de5dae2223")
    large, sizes = bytes(3 << 19), []
    assert files.sha256(write_text(tmp_path / "b", large), sizes.append) == hashlib.sha256(large).hexdigest()
    assert sum(sizes) == len(large)
    assert_rejected(tmp_path / "none", files.sha256, str(tmp_path / "none"))


def test_invalid_json_is_an_error(tmp_path: pathlib.Path):
    for content, *names in (
        ("[" * 100_000, "nested"), ('{"a": ' * 100_000, "nested"), ('{"a": ' + "9" * 5000 + "}", 5000), ("[1]", "list"),
        ('{"a": 1', "column 8"), ("", "column 1"), ('{"a": "' + "b" * 200 + '"}', 209, 200),
    ):  # fmt: skip
        path = write_text(tmp_path / "config.json", content)
        limit = 200 if 200 in names else files.MAX_JSON_BYTES
        assert_rejected((path, "JSON", *names), files.read_json_object, path, limit)


def test_a_byte_order_mark_is_dropped(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "config.json", b"\xef\xbb\xbf{}")
    assert files.read_text(path) == "{}"
    assert files.read_json_object(path, files.size(path)) == {}
    # Within a text, it is a character.
    for at_start, expected in ((True, "a"), (False, "\ufeffa")):
        lines = streams.decode_lines(path, [b"\xef\xbb\xbfa", b"\xef\xbb\xbfb"], at_start=at_start)
        assert list(lines) == [expected, "\ufeffb"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_a_model_folder_is_rejected_without_blocking(name: str, tmp_path: pathlib.Path):
    for file, content in (("config.json", '{"model_type": "bert", "vocab_size": 9}'), ("model.safetensors", "")):
        write_text(tmp_path / file, content)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert_rejected((tmp_path / name, "pipe"), open_model, str(tmp_path))


@pytest.mark.parametrize("is_folder", [False, True])
def test_temporary_files_of_killed_processes_are_removed_but_not_those_in_use(is_folder: bool, tmp_path, capfd):
    folder = tmp_path / "run [1]"
    path = folder / ".model.bin"
    left = [folder / f".model.bin.writing-{end}" for end in ("0123456789ab", os.getpid())]  # process ids are reused
    write_text(left[0] / "stale", "")
    left[1].touch()
    kept = {".model.bin.writing-by-hand", ".model-bin.writing-0123456789ab", ".model.bin.writing-0"}
    for name in kept:
        (folder / name).symlink_to("none") if name.endswith("-0") else (folder / name).touch()
    writer = files.write_folder_atomically if is_folder else files.write_atomically
    with contextlib.suppress(UserError), writer(str(path)) as first:
        with writer(str(path)) as beside:
            assert os.path.exists(os.path.dirname(first))
            (pathlib.Path(beside) / "new" if is_folder else pathlib.Path(beside)).touch()
        assert not is_folder or os.listdir(path) == ["new"]
        raise UserError("the first gives up")
    assert {each.name for each in folder.iterdir()} == {".model.bin", *kept}
    for line, each in zip(sorted(capfd.readouterr().err.splitlines()), sorted(left), strict=True):
        assert_mentions(line, each)


def test_an_output_folder_replaces_no_file_and_only_an_empty_folder(tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for path in (write_text(tmp_path / "file", ""), os.path.dirname(write_text(tmp_path / "full" / ".writing", ""))):
        assert_rejected(path, files.write_folder_atomically(path).__enter__)
    with files.write_folder_atomically("empty/") as beside:
        write_text(pathlib.Path(beside) / "new", "")
    expected = {"file", "full", "full/.writing", "empty", "empty/new"}
    assert {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")} == expected


def test_an_output_file_that_is_a_link_is_written_to_its_target(tmp_path: pathlib.Path):
    (tmp_path / "link").symlink_to("target")
    files.write_text(str(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_removing_a_missing_file_is_not_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "exists", lambda path: True)  # it existed a moment ago
    files.remove(str(tmp_path / "gone"))
    (tmp_path / "file").touch()
    files.remove(str(tmp_path / "file" / "below"))
    assert (tmp_path / "file").exists()


def test_parts_of_two_versions_of_a_file_are_never_mixed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    path, replaced = tmp_path / "index.json", []
    path.write_text("of old parts")
    monkeypatch.setattr(os, "replace", lambda _, target: replaced.append((os.path.basename(target), path.exists())))
    files.write_text(str(path), "without parts")
    with files.write_atomically(str(path)) as beside:
        for name in ("index.json", "part-0"):
            pathlib.Path(beside).with_name(name).write_text("new")
    assert replaced == [("index.json", True), ("part-0", False), ("index.json", False)]


def test_failed_writes_of_libraries_are_explained():
    texts = (
        "Can't write data (file write failed: errno = 27, error message = 'File too large', buf = 0x7f)",
        "Error while serializing: I/O error: File too large (os error 27)",
        'Error while serializing: IoError(Os { code: 27, kind: FileTooLarge, message: "File too large" })',
    )
    full = tf.errors.ResourceExhaustedError(None, None, "File too large")
    for error in (*map(RuntimeError, texts), full, OSError("File too large")):
        with pytest.raises(UserError, match=f"model.*{os.strerror(27)}"), files.explain_write_errors("model"):
            raise error


def test_a_path_that_is_too_long_is_rejected_before_work_starts(tmp_path: pathlib.Path):
    path = "/".join([str(tmp_path), *["long" * 50] * 25, "records"])
    assert_rejected((os.path.dirname(path), os.strerror(36)), files.check_writable, path)
    files.check_writable(str(tmp_path / "records"))
    assert_rejected((tmp_path, "folder"), files.check_writable, str(tmp_path))
    assert not list(tmp_path.glob("records*"))


@pytest.mark.parametrize("owner", ["os.mkdir", "os.open"])
def test_a_temporary_folder_that_is_removed_before_it_is_locked_is_made_again(owner: str, tmp_path, monkeypatch):
    original, used = getattr(os, owner.partition(".")[2]), []

    def run_and_lose_the_first(path: str, *rest: int, **options: int | None) -> int | None:
        result = original(path, *rest, **options)
        used.append(path)
        if len(used) == 1:
            os.rmdir(path)
        return result

    monkeypatch.setattr(owner, run_and_lose_the_first)
    with files.create_temporary_folder(str(tmp_path / "model")) as temporary:
        assert os.path.isdir(temporary)
        assert len(used) == 2
    assert os.listdir(tmp_path) == []


def test_files_are_written_and_none_is_removed_where_locks_are_not_supported(tmp_path: pathlib.Path, monkeypatch):
    write_text(tmp_path / "a.writing-0", "")
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=OSError))
    files.write_text(str(tmp_path / "a"), "new")
    assert sorted(os.listdir(tmp_path)) == ["a", "a.writing-0"]


def test_an_interrupted_write_keeps_the_old_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    path = write_text(tmp_path / "a", "old")
    monkeypatch.setattr(files, "check_interrupted", mock.Mock(side_effect=KeyboardInterrupt))
    for writer in (files.write_atomically(path), files.write_folder_atomically(str(tmp_path / "new"))):
        with pytest.raises(KeyboardInterrupt), writer as temporary:
            os.path.isdir(temporary) or write_text(pathlib.Path(temporary), "new")
    assert (os.listdir(tmp_path), files.read_text(path)) == (["a"], "old")


def test_an_existing_name_is_not_a_pattern_folders_are_left_out_and_names_that_are_not_utf8_rejected(tmp_path):
    paths = [write_text(tmp_path / name, "") for name in ("a1", "a[1]")]
    (tmp_path / "folder").mkdir()
    assert files.expand(paths[1:], "input_file") == paths[1:]
    assert files.expand([f"{tmp_path}/*"], "input_file") == paths
    (tmp_path / "byte\udcff").touch()
    names = ("--input_file", f"'{tmp_path}/byte\\udcff'", "0xff")
    assert_rejected(names, files.expand, [f"{tmp_path}/*"], "input_file")


def test_permissions_of_new_files_follow_the_umask(tmp_path: pathlib.Path):
    path, umask = write_text(tmp_path / "a", ""), os.umask(0o027)
    os.chmod(path, 0o600)
    files.reset_permissions(path)
    assert (os.umask(umask), os.stat(path).st_mode & 0o777) == (0o027, 0o640)


def test_the_command_that_converts_a_file_quotes_its_name(tmp_path: pathlib.Path):
    for encoding in ("latin-1", "utf-16"):
        path = write_text(tmp_path / "a b.txt", "ü".encode(encoding))
        assert f"'{path}'" in refusal(files.read_text, path)


@pytest.mark.parametrize("name", ["run [1]", "run *", "run ?", "run \\"])
def test_tensorflow_reads_paths_with_special_characters_through_a_link(name: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / name / "ckpt-1.index", "x")
    for path, suffix in ((name, "/ckpt-1.index"), (str(tmp_path / name / "ckpt-1"), ".index")):
        with files.link_to_plain_path(path) as linked:
            assert not set("[*?\\") & set(linked)
            assert os.path.exists(f"{linked}{suffix}")
    for path in (str(tmp_path), f"gs://bucket/{name}"):
        with files.link_to_plain_path(path) as linked:
            assert linked == path
