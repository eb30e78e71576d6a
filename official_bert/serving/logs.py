"""The server's log: a JSON object on each line of stderr."""

import datetime
import json
import logging
import sys
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_LOGGER = logging.getLogger("official_bert.serving")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        wrong = record.exc_info and record.exc_info[1]
        if isinstance(wrong, HttpProcessingError | web.RequestPayloadError):
            # A client's fault, of which there may be many; the message would repeat what was sent.
            line["refusal"] = f"malformed HTTP: {type(wrong).__name__}"
        elif record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start() -> None:
    """Sends the log, and the warnings of aiohttp and asyncio, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for logger in (_LOGGER, logging.getLogger("aiohttp"), logging.getLogger("asyncio")):
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if logger is _LOGGER else logging.WARNING)


def debug(event: str, **fields: Any) -> None:
    """Logs what happens too often to be read."""
    _LOGGER.debug(event, extra={"fields": fields})


def info(event: str, **fields: Any) -> None:
    """Logs what happened; the fields are the rest of the JSON object."""
    _LOGGER.info(event, extra={"fields": fields})


def warning(event: str, **fields: Any) -> None:
    """Logs what somebody should look at."""
    _LOGGER.warning(event, extra={"fields": fields})


def error(event: str, exception: BaseException, **fields: Any) -> None:
    """Logs a failure of the server's own, with its traceback."""
    _LOGGER.error(event, extra={"fields": fields}, exc_info=exception)
