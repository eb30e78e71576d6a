"""The flags of serve and check-export."""

import dataclasses
import os
import re

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.flags import ValidatedOptions, option

TOKEN_VARIABLE = "OFFICIAL_BERT_TOKEN"
# Headings of --help.
_MODELS, _NETWORK, _BATCHES, _LIMITS = ("models", "network", "batches", "limits")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HOST = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:]+:[0-9A-Fa-f:.]*")


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The options of serve.

    Raises:
        UserError: a value is out of range, or --model cannot be read.
    """

    model: list[str] = option(
        dataclasses.MISSING,
        "NAME=FOLDER: serves the versions in FOLDER (the --export_dir of export) as NAME; FOLDER alone goes by its own "
        "name. Give the flag again for each further model.",
        repeated=True,
        group=_MODELS,
    )
    host: str = option(
        "127.0.0.1", "The address to listen at: by default only this machine reaches the server.", group=_NETWORK
    )
    port: int = option(
        8501, "The port to listen at; 0 takes a free one and logs it.", group=_NETWORK, min=0, max=65_535
    )
    token_file: str | None = option(
        None,
        f"A file with a bearer token that requests must carry; the variable {TOKEN_VARIABLE} does the same.",
        group=_NETWORK,
    )
    allowed_hosts: list[str] = option(
        [],
        "Without a token: names besides localhost that requests may be addressed to, and pages may come from.",
        group=_NETWORK,
    )
    public_metrics: bool = option(
        False, "Answer /metrics without a token and at every address, such as a pod's.", group=_NETWORK
    )
    versions: int = option(1, "How many versions of each model to serve, the newest ones.", group=_MODELS, min=1)
    reload_seconds: float = option(2.0, "How often to look for new versions.", group=_MODELS, above=0)
    threads: int | None = option(
        None, "Threads by which a batch is computed; by default one for each core.", group=_BATCHES, min=1
    )
    max_batch_size: int = option(
        32, "The most texts, or windows of long texts, that a model computes at once.", group=_BATCHES, min=1
    )
    max_batch_tokens: int = option(
        2048, "The most tokens that a model computes at once, with padding; a longer text alone.", group=_BATCHES, min=1
    )
    max_wait_ms: float = option(
        2.0, "The longest that an instance waits for others, while the model is at work.", group=_BATCHES, min=0
    )
    max_queue: int = option(
        1024, "The most instances of a model that wait; beyond, requests are refused (429).", group=_BATCHES
    )
    max_instances: int = option(256, "The most instances in a request.", group=_LIMITS, min=1)
    max_tokens: int = option(
        131_072,
        "The most tokens of a request, in all windows of long texts (413). While eight times as many wait or are "
        "computed, requests are refused (429).",
        group=_LIMITS,
        min=1,
    )
    max_text_bytes: int = option(100_000, "The longest text, in bytes of UTF-8.", group=_LIMITS, min=1)
    max_body_bytes: int = option(4 << 20, "The longest request, in bytes.", group=_LIMITS, min=1)
    max_in_flight_bytes: int = option(
        64 << 20, "The most bytes of all requests that have not been answered yet.", group=_LIMITS
    )
    max_connections: int = option(
        1000,
        "The most connections at a time, as far as the system has descriptors; further ones are refused (503).",
        group=_LIMITS,
        min=1,
    )
    timeout_seconds: float = option(
        30.0, "The longest that a request takes: to arrive, and then to be answered.", group=_LIMITS, above=0
    )
    drain_seconds: float = option(
        25.0,
        "How long the server may take to end after SIGTERM. Requests in flight then get 503.",
        group=_LIMITS,
        above=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, part in (("max_queue", "max_instances"), ("max_in_flight_bytes", "max_body_bytes")):
            whole, size = getattr(self, name), getattr(self, part)
            if whole < size:
                raise UserError(
                    f"--{name} ({whole}) is less than --{part} ({size}): a request of that size could never be "
                    f"answered; raise --{name} or lower --{part}"
                )
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise UserError(
                    f"--allowed_hosts has {name!r}; give names alone, as in bert.example.com, without http:// and port"
                )
        self.folders()  # raises an error for a wrong --model now

    def folders(self) -> dict[str, str]:
        """Returns the folder of each model, by its name."""
        folders: dict[str, str] = {}
        for text in self.model:
            name, equals, folder = text.partition("=")
            if not equals:
                name, folder = os.path.basename(files.make_absolute(text).rstrip("/")), text
            if not folder or not _NAME.fullmatch(name):
                raise UserError(
                    f"--model={text} names no model; give NAME=FOLDER, with letters, digits and _ . - in NAME"
                )
            if name in folders:
                raise UserError(
                    f"--model names {name} twice, for {folders[name]} and {folder}; give each model one name"
                )
            folders[name] = folder.rstrip("/") or "/"
        return folders

    def token(self) -> str | None:
        """Returns the bearer token, or None where none is asked for.

        Raises:
            UserError: the file is empty, is not there, or the token cannot stand in a header.
        """
        if self.token_file is not None:
            source, text = self.token_file, files.read_text(self.token_file).strip()
        elif TOKEN_VARIABLE in os.environ:
            source, text = TOKEN_VARIABLE, os.environ[TOKEN_VARIABLE].strip()
        else:
            return None
        if not re.fullmatch(r"[!-~]+", text):
            raise UserError(f"{source} holds no token; give one word of letters, digits and ASCII signs")
        return text


@dataclasses.dataclass(frozen=True)
class CheckOptions(ValidatedOptions):
    """The options of check-export."""

    export_dir: str | None = option(
        None, "With a server's address: the export that it serves, beside which the texts and answers stand."
    )
