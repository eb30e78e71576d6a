import pathlib

import fsspec
import pytest

from data_gen.text.formats import read_documents
from official_bert.errors import UserError
from official_bert.utils import files


def refused(path: str, *inputs: str) -> bool:
    try:
        files.refuse_overwriting(path, "output_file", inputs)
    except UserError:
        return True
    return False


def test_an_input_is_known_by_any_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "in").touch()
    (tmp_path / "other").touch()
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "dangling").symlink_to("new")
    (tmp_path / "linked-folder").symlink_to("folder")
    (tmp_path / "hard").hardlink_to(tmp_path / "in")
    for path in ("in", "./in", "folder/../in", str(tmp_path / "in"), "link", "hard"):
        assert refused(path, "other", "in"), path
    for path in ("other", "folder/in", "new"):
        assert not refused(path, "in"), path
    # Files that are not there yet, as those of a run that is about to write two.
    assert refused("dangling", "new")
    assert refused("linked-folder/new", "folder/new")
    assert refused("gs://bucket/a/../b", "gs://bucket//b")
    assert not refused("gs://bucket/b", "gs://other/b")


def test_a_digest_is_that_of_the_content(tmp_path: pathlib.Path):
    (tmp_path / "a").write_bytes(b"abc")
    assert files.sha256(str(tmp_path / "a")).startswith("ba7816bf8f01cfea414140de5dae2223")
    with pytest.raises(UserError, match="there is no file .*none"):
        files.sha256(str(tmp_path / "none"))


def test_a_file_whose_name_is_not_utf8_is_named_and_refused(tmp_path: pathlib.Path):
    (tmp_path / "byte\udcff").touch()
    with pytest.raises(UserError, match=r"--input_file: the name '.*byte\\udcff' holds the byte 0xff, which is not"):
        files.expand([f"{tmp_path}/*"], "input_file")


def test_patterns_of_remote_files_are_expanded_through_fsspec():
    for name in ("b.txt", "a.txt"):
        with fsspec.open(f"memory://patterns/{name}", "wb") as writer:
            writer.write(b"One.\n")
    found = files.expand(["memory://patterns/*.txt"], "input_file")
    assert [path.rsplit("/")[-1] for path in found] == ["a.txt", "b.txt"]
    assert [files.size(path) for path in found] == [5, 5]
    assert list(read_documents(found[0])) == [["One."]]
    with pytest.raises(UserError, match=r"no file matches 'memory://patterns/\*.json'"):
        files.expand(["memory://patterns/*.json"], "input_file")
