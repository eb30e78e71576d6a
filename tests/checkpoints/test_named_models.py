"""hf:// and google:// names are downloaded from a local server that imitates the real ones."""

import hashlib
import http.server
import io
import json
import pathlib
import shutil
import tempfile
import threading
import time
import zipfile

import pytest
from huggingface_hub import constants

from official_bert.checkpoints import loading, named_models
from official_bert.checkpoints.formats import tf1
from official_bert.checkpoints.loading import open_model
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.modeling import choices
from tests.checkpoints import checkpoint_samples as samples
from tests.make import ROOT, WORDS, assert_rejected, write_text

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY = "uncased_L-2_H-128_A-2"
NAME = f"google://{TINY}"
# Keras leaves the socket of a failed download open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Server(http.server.ThreadingHTTPServer):
    """Serves files by path with their headers, like a model hub and a bucket, and records the requests.

    Attributes:
        most_bytes: Number of bytes of a file after which the connection is closed.
        before_answer: Function called with the path before each response.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.asked: list[str] = []
        self.most_bytes: int | None = None
        self.before_answer = lambda path: None

    def add_repository(self, name, folder, *revisions):
        """Adds what huggingface_hub requests: the commit of a revision with its files, and each file with its hash."""
        siblings, tree = [], []
        for path in filter(pathlib.Path.is_file, folder.rglob("*")):
            each, content = str(path.relative_to(folder)), path.read_bytes()
            digest = hashlib.sha1(content).hexdigest()
            siblings.append({"rfilename": each})
            tree.append({"type": "file", "path": each, "size": len(content), "oid": digest})
            for revision in (*revisions, COMMIT):
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'}
                self.files[f"/{name}/resolve/{revision}/{each}"] = content, headers
        information = {"id": name, "modelId": name, "sha": COMMIT, "private": False, "siblings": siblings}
        for revision in (*revisions, COMMIT):
            self.files[f"/api/models/{name}/revision/{revision}"] = json.dumps(information).encode(), {}
            self.files[f"/api/models/{name}/tree/{revision}"] = json.dumps(tree).encode(), {}

    def publish(self, content: bytes) -> None:
        """Serves a zip file as the TINY release."""
        self.files[f"/2020_02_20/{TINY}.zip"] = content, {}


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(path)
        self.server.before_answer(path)
        content, headers = self.server.files.get(path, (None, {}))
        self.send_response(404 if content is None else 200)
        for name, value in {**headers, "Content-Length": str(len(content or b""))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET" and content is not None:
            self.wfile.write(content[: self.server.most_bytes])

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def google_zip(folder, prefix=f"{TINY}/"):
    """Returns a zip of a checkpoint folder as Google publishes it, plus a file whose path points outside the folder."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as writer:
        for path in sorted(folder.iterdir()):
            writer.write(path, prefix + path.name)
        writer.writestr("../outside.txt", "not to be written")
    return content.getvalue()


def forget_downloads():
    for kept in (named_models._download_from_hub, named_models._print_source, named_models.get_google_release):
        kept.cache_clear()


@pytest.fixture(autouse=True)
def server(tmp_path, monkeypatch):
    """Starts the server and makes this process download from it, to caches of this test."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        addresses = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", addresses)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(named_models, "GOOGLE_ADDRESS", server.address)
        monkeypatch.setenv(named_models.CACHE_VARIABLE, str(tmp_path / "cache"))
        forget_downloads()
        yield server
        forget_downloads()
        server.shutdown()


@pytest.fixture
def on_hub(server, tmp_path):
    folder = tmp_path / "published"
    samples.write_hugging_face(samples.sample(samples.SAMPLE_CONFIG), folder)
    for name in ("pytorch_model.bin", "tf_model.h5"):
        (folder / name).write_bytes(b"other weights")
    server.add_repository("owner/name", folder, "main", "v1")
    return folder


@pytest.fixture
def released(server, tmp_path):
    folder = tmp_path / "released"
    tf1.write(samples.sample(samples.SAMPLE_CONFIG), str(folder))
    for name in ("tokenizer_config.json", "checksums.json"):
        (folder / name).unlink()
    server.publish(google_zip(folder))
    return folder


def test_names_on_the_hub_are_accepted_as_checkpoints(on_hub, server, tmp_path):
    expected = open_model(str(on_hub))
    samples.assert_equal(open_model("hf://owner/name"), expected)
    assert not [path for path in server.asked if path.endswith(("pytorch_model.bin", "tf_model.h5"))]
    assert loading.load("hf://owner/name@v1").tokenizer.tokenize("the cat") == ["the", "cat"]
    assert read_initial_model("hf://owner/name").vocab == expected.vocab
    theirs = samples.unpacked("transformers", tmp_path)
    for folder in (theirs / "shards", theirs / "safetensors_shards", tmp_path / "tf1", tmp_path / "keras_hub"):
        if folder.parent != theirs:
            samples.write_sample(folder.name, folder)
        server.add_repository(f"owner/{folder.name}", folder, "main")
        samples.assert_equal(open_model(f"hf://owner/{folder.name}"), open_model(str(folder)))


def test_added_tokens_of_old_files_are_downloaded(on_hub, server):
    (on_hub / "tokenizer.json").unlink()
    (on_hub / "added_tokens.json").write_text(json.dumps({"un": WORDS.index("un")}))
    (on_hub / "special_tokens_map.json").write_text('{"additional_special_tokens": ["un"]}')
    server.add_repository("owner/old", on_hub, "main")
    expected = open_model(str(on_hub)).casing
    assert [token.content for token in expected.added_tokens] == ["un"]
    assert open_model("hf://owner/old").casing == expected


def test_without_network_the_cache_is_used_or_the_error_explains_what_to_do(on_hub, server, monkeypatch):
    folder = named_models.get_local_folder("hf://owner/name")
    forget_downloads()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(server.asked)
    assert named_models.get_local_folder("hf://owner/name") == folder
    names = ("hf://owner/other@v2", "revision v2", server.address, "hf download owner/other --local-dir")
    assert_rejected(names, named_models.get_local_folder, "hf://owner/other@v2")
    assert len(server.asked) == asked


@pytest.mark.parametrize("most_bytes", [0, 1, 900])  # 900 bytes are enough for every file except the weights
def test_an_interrupted_download_leaves_no_incomplete_model(most_bytes, on_hub, released, server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # huggingface_hub waits before it retries
    server.most_bytes = most_bytes
    for name, named in (("hf://owner/name", "hf://owner/name"), (NAME, f"{TINY}.zip")):
        for _ in range(2):  # the second attempt finds the files left by the first
            assert_rejected(named, open_model, name)
    server.most_bytes = None
    samples.assert_equal(open_model("hf://owner/name"), open_model(str(on_hub)))
    samples.assert_equal(open_model(NAME), open_model(str(released)))


@pytest.mark.parametrize("prefix", [f"{TINY}/", ""])
def test_googles_releases_are_downloaded_once(prefix, released, server, tmp_path):
    server.publish(google_zip(released, prefix))
    samples.assert_equal(open_model(NAME), open_model(str(released)))
    named_models.get_google_release.cache_clear()
    assert named_models.get_google_release(f"{NAME}/") == str(tmp_path / "cache" / "google" / TINY)
    assert len(server.asked) == 1
    assert not (tmp_path / "cache" / "google" / "outside.txt").exists()


def test_concurrent_and_killed_downloads(released, server, tmp_path, monkeypatch):
    other, places = tmp_path / "cache" / "google" / TINY, []
    left = other.with_name(f"{TINY}.writing-0123456789ab")
    write_text(left / "release.zip", "half of it")

    def other_is_sooner(_):
        places.extend(tmp_path.rglob("*.writing-*"))
        shutil.copytree(released, other)
        (other / "mark").touch()

    server.before_answer = other_is_sooner
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # too small for gigabytes
    assert named_models.get_google_release(NAME) == str(other)
    assert (other / "mark").exists()  # kept, since the other process may be reading it
    assert [place.parent for place in places] == [other.parent]
    assert left not in places
    assert [path.name for path in other.parent.iterdir()] == [TINY]


def test_a_damaged_download_leaves_no_files(released, server, tmp_path):
    place = tmp_path / "cache" / "google" / TINY
    content = bytearray(google_zip(released))
    content[len(content) // 2] ^= 1
    address = f"{server.address}/2020_02_20/{TINY}.zip"
    for received, reason in ((bytes(content), "CRC"), (b"<html>", "File")):  # words of zipfile
        server.publish(received)
        assert_rejected((address, reason), open_model, NAME)
    del server.files[f"/2020_02_20/{TINY}.zip"]
    assert_rejected((address, 404), open_model, NAME)
    assert_rejected("uncased_L-12_H-768_A-12", open_model, "google://uncased_L-3_H-128_A-2")
    assert not place.exists()
    place.write_text("")
    assert_rejected((place, "file"), named_models.get_google_release, NAME)


def test_names_without_a_scheme_are_downloaded(on_hub, released, server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    server.add_repository("google-bert/bert-base-uncased", on_hub, "main")
    base = "google-bert/bert-base-uncased"
    sources = {"bert-base-uncased": f"hf://{base}", base: f"hf://{base}"}
    for name, source in {**sources, **dict.fromkeys(("bert-tiny", TINY, f"google/bert_{TINY}"), NAME)}.items():
        for _ in range(2):  # the note is printed once
            samples.assert_equal(open_model(name), open_model(str(released if source == NAME else on_hub)))
        assert capsys.readouterr().out.count(f"{name} is read from {source}") == 1
    assert read_initial_model("bert-tiny").vocab == open_model(str(released)).vocab
    samples.convert(pathlib.Path("bert-tiny"), pathlib.Path("bert-base-uncased"))
    # A folder with that name takes precedence, even if the name was resolved to another source before.
    samples.assert_equal(open_model("bert-base-uncased"), open_model(str(released)))
    (tmp_path / "bert-mini.index").touch()
    assert named_models.get_local_folder("bert-mini") == "bert-mini"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("name", "expected"), [
    ("bert-base-uncaesd", "bert-base-uncased"),
    ("BERT-Tiny", "bert-tiny"),
    ("dslim/bert-base-NER", "hf://dslim/bert-base-NER"),
    ("mine", "official-bert models"),
    ("./bert-tiny", ".index"),
    ("hf://a/b/c", "hf://owner/name"),
    ("hf://owner/../name", "hf://owner/name"),
])  # fmt: skip
def test_unknown_names_are_explained_without_network(name, expected, server):
    for read in (open_model, read_initial_model):
        assert_rejected((name, expected), read, name)
    assert not server.asked
    assert_rejected("hf://owner/gone", open_model, "hf://owner/gone")


def test_the_list_of_names_has_the_published_sizes_and_needs_no_network(server):
    names = list(named_models.GOOGLE_RELEASES)
    sizes = {path.stem for path in (ROOT / "configs" / "models").glob("*.json")}
    assert sizes <= set(names)
    assert len(set(names)) == len(names) == 9 + 23  # BERT-Base is also a miniature
    title, *rows, note = named_models.format_table()
    assert title.split() == ["name", "parameters", "layers", "hidden", "licence", "taken", "from"]
    by_name = {row.split()[0]: row.split()[1:] for row in rows}
    assert by_name.keys() == named_models.list_known_models().keys()
    source = "hf://google-bert/bert-base-uncased"
    assert by_name["bert-base-uncased"] == ["109,482,240", "12", "768", "Apache-2.0", source]
    assert by_name["bert-tiny"] == ["4,385,920", "2", "128", "Apache-2.0", NAME]
    millions = [int(by_name[name][0].replace(",", "")) // 10**6 for name in [*choices.HUB_MODELS, *choices.MINIATURES]]
    assert millions == [109, 335, 108, 333, 177, 167, 102, 335, 333, 4, 11, 28, 41]
    assert "without heads" in note
    assert not server.asked
