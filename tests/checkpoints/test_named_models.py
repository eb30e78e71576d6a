"""hf:// and google:// names are downloaded from a local server that imitates the real ones."""

import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from huggingface_hub import constants

from official_bert.checkpoints import conversion, google_models, loading, named_models
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import ConversionOptions
from official_bert.errors import UserError
from official_bert.finetuning.initial_model import read_initial_model
from tests.checkpoints import hub_server
from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, assert_equal, sample, unpacked
from tests.checkpoints.hub_server import TINY, Server
from tests.conftest import ROOT
from tests.make import refusal


def forget_downloads() -> None:
    for kept in (named_models._download_from_hub, named_models._print_source, google_models.get_local_folder):
        kept.cache_clear()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def own_caches(server: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    addresses = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", addresses)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(google_models, "ADDRESS", server.address)
    monkeypatch.setenv(google_models.CACHE_VARIABLE, str(tmp_path / "cache"))
    forget_downloads()
    yield
    forget_downloads()


@pytest.fixture
def on_hub(server: Server, tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "published"
    hugging_face.write(sample(SAMPLE_CONFIG), str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"other weights")
    server.add_repository("owner/name", folder, ["main", "v1"])
    return folder


def test_names_on_the_hub_are_accepted_as_checkpoints(on_hub: pathlib.Path, server: Server, tmp_path):
    expected = open_model(str(on_hub))
    assert_equal(open_model("hf://owner/name"), expected)
    assert not [path for path in server.asked if path.endswith("pytorch_model.bin")]
    assert loading.load("hf://owner/name@v1").tokenizer.tokenize("the cat") == ["the", "cat"]
    assert read_initial_model("hf://owner/name").vocab == expected.vocab
    conversion.convert(ConversionOptions(from_="hf://owner/name", to=str(tmp_path / "converted")))


def test_tensorflow_weights_are_downloaded_only_without_others(on_hub: pathlib.Path, server: Server, tmp_path):
    (on_hub / "tf_model.h5").write_bytes(b"the same weights once more")
    server.add_repository("owner/both", on_hub, ["main"])
    assert_equal(open_model("hf://owner/both"), open_model(str(on_hub)))
    assert "/owner/both/resolve/main/model.safetensors".replace("main", hub_server.COMMIT) in server.asked
    assert not [path for path in server.asked if path.endswith("tf_model.h5")]
    alone = unpacked("transformers", tmp_path) / "shards"
    server.add_repository("owner/alone", alone, ["main"])
    assert_equal(open_model("hf://owner/alone"), open_model(str(alone)))


def test_without_network_the_cache_is_used_or_the_error_explains_what_to_do(on_hub, server, monkeypatch):
    folder = named_models.get_local_folder("hf://owner/name")
    forget_downloads()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(server.asked)
    assert named_models.get_local_folder("hf://owner/name") == folder
    with pytest.raises(
        UserError,
        match=r"cannot download hf://owner/other@v2: owner/other at revision v2 is not in the cache .*hub, and "
        r"http://127.0.0.1.* did not provide it.*Without network, run `hf download owner/other --local-dir FOLDER`",
    ):
        named_models.get_local_folder("hf://owner/other@v2")
    assert len(server.asked) == asked


@pytest.mark.parametrize("most_bytes", [0, 1, 900])  # 900 bytes are enough for every file except the weights
def test_an_interrupted_download_leaves_no_incomplete_model(most_bytes, on_hub, released, server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # huggingface_hub waits before it retries
    server.publish(hub_server.google_zip(released))
    server.most_bytes = most_bytes
    for name in ("hf://owner/name", f"google://{TINY}"):
        for _ in range(2):  # the second attempt finds the files left by the first
            with pytest.raises(UserError, match=rf"cannot download ({name}|.*{TINY}.zip)"):
                open_model(name)
    server.most_bytes = None
    assert_equal(open_model("hf://owner/name"), open_model(str(on_hub)))
    assert_equal(open_model(f"google://{TINY}"), open_model(str(released)))


@pytest.mark.parametrize("name", ["hf://", "hf://a/b/c", "hf://owner/../name"])
def test_invalid_names_on_the_hub_are_rejected(name: str, server: Server):
    assert "is not a valid address; expected hf://owner/name or" in refusal(open_model, name)
    assert "cannot download hf://owner/gone" in refusal(open_model, "hf://owner/gone")


@pytest.fixture
def released(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "released"
    tf1.write(sample(SAMPLE_CONFIG), str(folder))
    for name in ("tokenizer_config.json", "checksums.json"):
        (folder / name).unlink()
    return folder


@pytest.mark.parametrize("prefix", [f"{TINY}/", ""])
def test_googles_releases_are_downloaded_once(prefix: str, released: pathlib.Path, server: Server, tmp_path):
    server.publish(hub_server.google_zip(released, prefix))
    expected = open_model(str(released))
    assert_equal(open_model(f"google://{TINY}"), expected)
    model = loading.load_pretraining_model(f"google://{TINY}").model
    np.testing.assert_array_equal(model.get_layer("pooler").kernel, expected.weights["pooler/kernel"])
    google_models.get_local_folder.cache_clear()
    assert google_models.get_local_folder(f"google://{TINY}") == str(tmp_path / "cache" / "google" / TINY)
    assert len(server.asked) == 1
    assert not (tmp_path / "cache" / "google" / "outside.txt").exists()


def test_concurrent_and_killed_downloads(
    released: pathlib.Path, server: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    server.publish(hub_server.google_zip(released))
    other = tmp_path / "cache" / "google" / TINY
    left = other.with_name(f"{TINY}.writing-0123456789ab")
    left.mkdir(parents=True)
    (left / "release.zip").write_bytes(b"half of it")
    places = []

    def other_is_sooner(path: str) -> None:
        places.extend(tmp_path.rglob("*.writing-*"))
        shutil.copytree(released, other)
        (other / "mark").touch()

    server.before_answer = other_is_sooner
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # too small for gigabytes
    assert google_models.get_local_folder(f"google://{TINY}") == str(other)
    assert (other / "mark").exists()  # kept, since the other process may be reading it
    assert [place.parent for place in places] == [other.parent]
    assert left not in places
    assert [path.name for path in other.parent.iterdir()] == [TINY]


def test_a_file_in_place_of_the_cached_folder_is_an_error(server: Server, tmp_path: pathlib.Path):
    place = tmp_path / "cache" / "google" / TINY
    place.parent.mkdir(parents=True)
    place.write_text("")
    message = refusal(google_models.get_local_folder, f"google://{TINY}")
    assert f"{TINY} is a file; expected the folder of a checkpoint. Remove it" in message


def test_a_damaged_download_leaves_no_files(released: pathlib.Path, server: Server, tmp_path: pathlib.Path):
    content = hub_server.google_zip(released)
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for received, message in ((bytes(flipped), "Bad CRC"), (b"<html>", "File is not a zip file")):
        server.publish(received)
        assert f"or it was damaged on the way: {message}" in refusal(open_model, f"google://{TINY}")
    del server.files[f"/2020_02_20/{TINY}.zip"]
    with pytest.raises(
        UserError,
        match=rf"cannot download http://127.0.0.1.*/2020_02_20/{TINY}.zip.*404.*unpack it, and pass its folder",
    ):
        open_model(f"google://{TINY}")
    message = refusal(open_model, "google://uncased_L-3_H-128_A-2")
    assert "is not one of Google's releases; the names are uncased_L-12_H-768_A-12" in message
    assert not (tmp_path / "cache" / "google" / TINY).exists()


def test_every_configuration_of_a_release_has_an_address():
    sizes = {path.stem for path in (ROOT / "configs" / "models").glob("*.json")}
    assert sizes <= set(google_models.list_names())
    assert (
        len(set(google_models.list_names())) == len(google_models.list_names()) == 9 + 23
    )  # BERT-Base is also a miniature


def test_names_without_a_scheme_are_downloaded_from_their_source(
    on_hub: pathlib.Path, released: pathlib.Path, server: Server, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    server.add_repository("google-bert/bert-base-uncased", on_hub, ["main"])
    server.publish(hub_server.google_zip(released))
    for name, source, expected in (
        ("bert-base-uncased", "hf://google-bert/bert-base-uncased", on_hub),
        ("google-bert/bert-base-uncased", "hf://google-bert/bert-base-uncased", on_hub),
        ("bert-tiny", f"google://{TINY}", released),
        (TINY, f"google://{TINY}", released),
        (f"google/bert_{TINY}", f"google://{TINY}", released),
    ):
        for _ in range(2):  # the note is printed once
            assert_equal(open_model(name), open_model(str(expected)))
        line = f"note: {name} is read from {source}, because no file or folder has this name\n"
        assert capsys.readouterr().out == line
    assert read_initial_model("bert-tiny").vocab == open_model(str(released)).vocab
    conversion.convert(ConversionOptions(from_="bert-tiny", to="bert-base-uncased"))
    # A folder with that name takes precedence, even if the name was resolved to another source before.
    assert_equal(open_model("bert-base-uncased"), open_model(str(released)))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("name", "message"), [
    ("bert-base-uncaesd", "there is no file or folder bert-base-uncaesd, .*did you mean bert-base-uncased"),
    ("BERT-Tiny", "did you mean bert-tiny, "),
    ("dslim/bert-base-NER", "pass hf://dslim/bert-base-NER for a model on the Hugging Face Hub"),
    ("mine", "no known model has this name; `official-bert models` lists the names$"),
    ("./bert-tiny", "there is no readable checkpoint ./bert-tiny"),
])  # fmt: skip
def test_similar_names_are_suggested_for_an_unknown_one(name: str, message: str, server: Server):
    for read in (open_model, read_initial_model):
        with pytest.raises(UserError, match=message):
            read(name)
    assert not server.asked


def test_the_list_of_names_has_the_published_sizes_and_needs_no_network(server: Server):
    title, *rows, note = named_models.format_table()
    assert title.split() == ["name", "parameters", "layers", "hidden", "licence", "taken", "from"]
    by_name = {row.split()[0]: row.split()[1:] for row in rows}
    assert by_name.keys() == named_models.list_known_models().keys()
    assert by_name["bert-base-uncased"] == [
        "109,482,240", "12", "768", "Apache-2.0", "hf://google-bert/bert-base-uncased"
    ]  # fmt: skip
    assert by_name["bert-tiny"] == ["4,385,920", "2", "128", "Apache-2.0", f"google://{TINY}"]
    assert "without heads" in note
    assert not server.asked
