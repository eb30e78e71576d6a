"""A local server that imitates the Hugging Face Hub and the bucket of Google's releases."""

import hashlib
import http.server
import io
import json
import pathlib
import zipfile
from collections.abc import Callable

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY = "uncased_L-2_H-128_A-2"


class Server(http.server.ThreadingHTTPServer):
    """Serves files by path with their headers, like a model hub and a bucket, and records the requests.

    Attributes:
        most_bytes: Number of bytes of a file after which the connection is closed.
        before_answer: Function called with the path before each response.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.asked: list[str] = []
        self.most_bytes: int | None = None
        self.before_answer: Callable[[str], None] = lambda path: None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add_repository(self, name: str, folder: pathlib.Path, revisions: list[str]) -> None:
        """Adds what huggingface_hub requests: the commit of a revision with its files, and each file with its hash."""
        contents = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        siblings = [{"rfilename": each} for each in contents]
        tree = [
            {"type": "file", "path": each, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for each, content in contents.items()
        ]
        for revision in [*revisions, COMMIT]:
            information = {"id": name, "modelId": name, "sha": COMMIT, "private": False, "siblings": siblings}
            self.files[f"/api/models/{name}/revision/{revision}"] = json.dumps(information).encode(), {}
            self.files[f"/api/models/{name}/tree/{revision}"] = json.dumps(tree).encode(), {}
            for each, content in contents.items():
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
                self.files[f"/{name}/resolve/{revision}/{each}"] = content, headers

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
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET" and content is not None:
            self.wfile.write(content[: self.server.most_bytes])

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def google_zip(folder: pathlib.Path, prefix: str = f"{TINY}/") -> bytes:
    """Returns a zip of a checkpoint folder as Google publishes it, plus a file whose path points outside the folder."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as writer:
        for path in sorted(folder.iterdir()):
            writer.write(path, prefix + path.name)
        writer.writestr("../outside.txt", "not to be written")
    return content.getvalue()
