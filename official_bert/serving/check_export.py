"""The check-export command: sends an export's reference inputs to the export or a server, and compares the answers."""

import json
import os
import urllib.error
import urllib.request
from http import HTTPStatus

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import backends, exports, reference_answers
from official_bert.serving.options import TOKEN_VARIABLE, CheckOptions
from official_bert.utils.progress import Progress

_MAX_SHOWN = 5  # Number of differences in the error message.
_TIMEOUT_SECONDS = 300
_SCHEMES = ("http://", "https://")


def check(options: CheckOptions, folder_or_url: str) -> str:
    """Compares the answers of an export or a server with the stored answers to its reference inputs.

    Args:
        options: The flags. If a server is checked, --export_dir is the export that it serves.
        folder_or_url: The folder of an export, or the URL of a served model, http://HOST:PORT/v1/models/NAME.

    Returns:
        A summary line.

    Raises:
        UserError: If an answer differs by more than rounding, the export is damaged or has no reference inputs, or the
            server does not answer.
    """
    is_server = folder_or_url.startswith(_SCHEMES)
    if is_server and options.export_dir is None:
        raise UserError(
            f"{folder_or_url} is a server; to check it, also pass --export_dir, the folder of the export that it serves"
        )
    if not is_server and options.export_dir is not None:
        raise UserError(f"--export_dir requires the URL of a server, but {folder_or_url} is a folder; remove it")
    folder = exports.find_newest_version(options.export_dir if options.export_dir is not None else folder_or_url)
    checksums.check_files(folder)
    reference = reference_answers.read(folder)
    if is_server:
        alone, together = _query_server(folder_or_url, reference), reference_answers.Answers()
    elif exports.is_onnx(folder):
        alone, together = reference_answers.compute_answers(backends.load_predictor(folder).run, reference.rows())
    else:
        from official_bert.export import separate_process

        alone, together = separate_process.answer_without_package(folder, reference.rows())
    different = reference.compare(alone, together, "the server" if is_server else "the export")
    if different:
        more = [f"and {len(different) - _MAX_SHOWN} more"] if len(different) > _MAX_SHOWN else []
        raise UserError("\n  ".join([f"{folder_or_url} has different answers:", *different[:_MAX_SHOWN], *more]))
    largest = max(map(reference.largest_difference, (alone, together)))
    return (
        f"{folder_or_url} answers {len(reference)} texts as predict did when {folder} was written; numbers x differ by "
        f"at most {largest:.1g} * (1 + |x|)"
    )


def _query_server(url: str, reference: reference_answers.ReferenceAnswers) -> reference_answers.Answers:
    url = url if url.endswith(":predict") else f"{url.rstrip('/')}:predict"
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    progress = Progress("checking", len(reference), "texts")
    answers: reference_answers.Answers = []
    for number, row in enumerate(reference.rows(), 1):
        body = json.dumps({"instances": [row]}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_TIMEOUT_SECONDS) as reply:
                answer = json.load(reply)["predictions"][0]
        except urllib.error.HTTPError as error:
            advice = f"; set {TOKEN_VARIABLE} to the token" if error.code == HTTPStatus.UNAUTHORIZED else ""
            reason = f"{error.code} {_read_reason(error)}{advice}"
            raise UserError(f"{url} rejects {json.dumps(row)[:200]}: {reason}") from error
        except (OSError, ValueError) as error:  # ValueError: The URL is invalid, or the answer is not JSON.
            raise UserError(
                f"{url} does not answer: {getattr(error, 'reason', error)}; check that it is the URL of a model, "
                "http://HOST:PORT/v1/models/NAME, and that the server is running"
            ) from error
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(f"{url} returned no predictions; check that it is the URL of a model") from error
        answers.append(answer if isinstance(answer, dict) else dict.fromkeys(reference.answers, answer))
        progress.update(number)
    return answers


def _read_reason(error: urllib.error.HTTPError) -> str:
    text = error.read(1000).decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or str(error.reason)
