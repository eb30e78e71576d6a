"""The options of the serve and check-export commands."""

import dataclasses
import os
import re

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.flags import ValidatedOptions, option

TOKEN_VARIABLE = "OFFICIAL_BERT_TOKEN"
# Groups in --help.
_MODELS, _NETWORK, _BATCHES, _LIMITS = ("models", "network", "batches", "limits")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HOST = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:]+:[0-9A-Fa-f:.]*")


@dataclasses.dataclass(frozen=True)
class ServingOptions(ValidatedOptions):
    """The options of the serve command.

    Raises:
        UserError: If a value is out of range, or --model is invalid.
    """

    model: list[str] = option(
        dataclasses.MISSING,
        "NAME=FOLDER to serve the versions in FOLDER (the --export_dir of export) as NAME, by default the folder's "
        "name. Repeat the flag for each model.",
        repeated=True,
        group=_MODELS,
    )
    host: str = option("127.0.0.1", "Address to listen on. By default, only this machine can connect.", group=_NETWORK)
    port: int = option(8501, "Port to listen on. 0 selects a free port and logs it.", group=_NETWORK, min=0, max=65_535)
    token_file: str | None = option(
        None, f"File with a bearer token that requests must send. You can also set {TOKEN_VARIABLE}.", group=_NETWORK
    )
    allowed_hosts: list[str] = option(
        [],
        "Without a token: host names that requests and web pages may use, in addition to localhost.",
        group=_NETWORK,
    )
    public_metrics: bool = option(
        False, "Serve /metrics without a token and for any host name, such as the address of a pod.", group=_NETWORK
    )
    versions: int = option(1, "Number of versions of each model to serve, newest first.", group=_MODELS, min=1)
    reload_seconds: float = option(
        2.0, "Number of seconds between checks for new versions of the models.", group=_MODELS, above=0
    )
    threads: int | None = option(
        None, "Number of threads that compute one batch. Defaults to the number of cores.", group=_BATCHES, min=1
    )
    max_batch_size: int = option(32, "Maximum texts (or windows of long texts) per batch.", group=_BATCHES, min=1)
    max_batch_tokens: int = option(
        2048, "Maximum number of tokens per batch, with padding. A longer text is its own batch.", group=_BATCHES, min=1
    )
    max_wait_ms: float = option(
        2.0, "Maximum time in milliseconds to wait for more texts while the model is busy.", group=_BATCHES, min=0
    )
    max_queue: int = option(
        1024, "Maximum number of waiting texts per model. Further requests get status 429.", group=_BATCHES
    )
    max_instances: int = option(256, "Maximum number of instances per request.", group=_LIMITS, min=1)
    max_tokens: int = option(
        131_072,
        "Maximum number of tokens per request, over all windows (else status 413). While eight times as many are "
        "waiting or in progress, further requests get status 429.",
        group=_LIMITS,
        min=1,
    )
    max_text_bytes: int = option(100_000, "Maximum size of a text in bytes of UTF-8.", group=_LIMITS, min=1)
    max_body_bytes: int = option(4 << 20, "Maximum size of a request in bytes.", group=_LIMITS, min=1)
    max_in_flight_bytes: int = option(64 << 20, "Maximum size in bytes of all requests in flight.", group=_LIMITS)
    max_connections: int = option(
        1000,
        "Maximum number of connections, within the system's limit of open files. Further ones get status 503.",
        group=_LIMITS,
        min=1,
    )
    timeout_seconds: float = option(
        30.0, "Timeout in seconds for receiving a request, and again for its response.", group=_LIMITS, above=0
    )
    drain_seconds: float = option(
        25.0,
        "Maximum time in seconds to finish requests after SIGTERM. Remaining requests then get status 503.",
        group=_LIMITS,
        above=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, part in (("max_queue", "max_instances"), ("max_in_flight_bytes", "max_body_bytes")):
            whole, size = getattr(self, name), getattr(self, part)
            if whole < size:
                raise UserError(
                    f"--{name} is {whole}, less than --{part} ({size}), so the server could never accept a request of "
                    f"that size; raise --{name} or lower --{part}"
                )
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise UserError(
                    f"--allowed_hosts contains {name!r}; pass names such as bert.example.com, without http:// and port"
                )
        self.folders()  # Checks --model.

    def folders(self) -> dict[str, str]:
        """Returns the folder of each model in --model, by model name."""
        folders: dict[str, str] = {}
        for text in self.model:
            name, equals, folder = text.partition("=")
            if not equals:
                name, folder = os.path.basename(files.make_absolute(text).rstrip("/")), text
            if not folder or not _NAME.fullmatch(name):
                raise UserError(f"--model={text} is invalid; pass NAME=FOLDER, with letters, digits and _ . - in NAME")
            if name in folders:
                raise UserError(
                    f"--model uses the name {name} twice, for {folders[name]} and {folder}; pass different names"
                )
            folders[name] = folder.rstrip("/") or "/"
        return folders

    def token(self) -> str | None:
        """Reads the bearer token from the file or the environment variable. Returns None if requests need no token.

        Raises:
            UserError: If the file is missing or empty, or the token contains characters that an HTTP header cannot.
        """
        if self.token_file is not None:
            source, text = self.token_file, files.read_text(self.token_file).strip()
        elif TOKEN_VARIABLE in os.environ:
            source, text = TOKEN_VARIABLE, os.environ[TOKEN_VARIABLE].strip()
        else:
            return None
        if not re.fullmatch(r"[!-~]+", text):
            raise UserError(
                f"{source} contains no valid token; it must be one word of ASCII letters, digits and punctuation"
            )
        return text


@dataclasses.dataclass(frozen=True)
class CheckOptions(ValidatedOptions):
    """The options of the check-export command."""

    export_dir: str | None = option(
        None, "Folder of the export, to compare the answers of a running server with the answers stored there."
    )
