"""Asks an export, or a server of it, the texts by which it proved itself when it was written."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import exports, loading, replays
from official_bert.serving.options import TOKEN_VARIABLE, CheckOptions
from official_bert.utils.progress import Progress

_SHOWN = 5  # differences
_SECONDS = 300  # the longest that a server may take for a text
_URL = ("http://", "https://")


def check(options: CheckOptions, folder_or_url: str) -> str:
    """Asks the texts, and returns a line about the answers.

    Args:
        options: with the export's folder where a server is asked.
        folder_or_url: an export's folder, or a served model's address, http://HOST:PORT/v1/models/NAME.

    Raises:
        UserError: answers differ from those of the folder by more than rounding, the export is damaged or has no texts,
            or the server cannot be asked.
    """
    is_server = folder_or_url.startswith(_URL)
    if is_server and options.export_dir is None:
        raise UserError(f"the texts to ask {folder_or_url} stand beside the export; pass its folder as --export_dir")
    if not is_server and options.export_dir is not None:
        raise UserError(f"--export_dir goes with a server's address, and {folder_or_url} is a folder; leave it out")
    folder = exports.find_newest_version(options.export_dir if options.export_dir is not None else folder_or_url)
    checksums.check_files(folder)
    texts = replays.read(folder)
    if is_server:
        answers: Sequence[Mapping[str, Any]] = _ask_server(folder_or_url, texts)
        different = list(texts.differences(answers, "the server"))
    else:
        answers, together = _ask_folder(folder, texts)
        different = [*texts.differences(answers, "it"), *texts.differences(together, "it in a batch")]
    if different:
        more = [f"and {len(different) - _SHOWN} more"] if len(different) > _SHOWN else []
        raise UserError("\n  ".join([f"{folder_or_url} answers otherwise:", *different[:_SHOWN], *more]))
    largest = max(map(texts.largest_difference, [answers] if is_server else [answers, together]))
    return (
        f"{folder_or_url} answers {len(texts)} texts as predict did when {folder} was written; numbers x differ by at "
        f"most {largest:.1g} * (1 + |x|)"
    )


def _ask_folder(folder: str, texts: replays.Replay) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """The answers to each text alone, and to the first ones together."""
    if exports.is_onnx(folder):
        return replays.ask(loading.load(folder), texts.rows())
    from official_bert.export import plain_answers

    return plain_answers.answer_without_package(folder, texts.rows())


def _ask_server(url: str, texts: replays.Replay) -> list[Mapping[str, Any]]:
    url = url if url.endswith(":predict") else f"{url.rstrip('/')}:predict"
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    progress = Progress("asking", len(texts), "texts")
    answers: list[Mapping[str, Any]] = []
    for number, row in enumerate(texts.rows(), 1):
        body = json.dumps({"instances": [row]}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_SECONDS) as reply:
                answer = json.load(reply)["predictions"][0]
        except urllib.error.HTTPError as error:
            raise UserError(f"{url} refuses {json.dumps(row)[:200]}: {error.code} {_reason(error)}") from error
        except (OSError, ValueError) as error:  # the second: an address that is none, or an answer that is not JSON
            raise UserError(
                f"{url} cannot be asked: {getattr(error, 'reason', error)}; is it a model's address, "
                "http://HOST:PORT/v1/models/NAME, and the server running?"
            ) from error
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(f"{url} answers without predictions: it is no TensorFlow Serving") from error
        answers.append(answer if isinstance(answer, dict) else dict.fromkeys(texts.answers, answer))
        progress.update(number)
    return answers


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read(1000).decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or str(error.reason)
