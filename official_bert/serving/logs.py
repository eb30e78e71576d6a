"""The server's log: one JSON object per line on stderr."""

import datetime
import logging
import sys
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_LOGGER = logging.getLogger("official_bert.serving")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        exception = record.exc_info and record.exc_info[1]
        if isinstance(exception, HttpProcessingError | web.RequestPayloadError):
            # The client's fault. The message could repeat what the client sent.
            line["refusal"] = f"malformed HTTP: {type(exception).__name__}"
        elif record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def start() -> None:
    """Writes the server's log, and the warnings of aiohttp and asyncio, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for logger in (_LOGGER, logging.getLogger("aiohttp"), logging.getLogger("asyncio")):
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if logger is _LOGGER else logging.WARNING)


def info(event: str, **fields: Any) -> None:
    """Logs an event, such as "loaded". The keyword arguments become keys of the JSON object."""
    _log(logging.INFO, event, fields)


def warning(event: str, **fields: Any) -> None:
    """Logs an event that an operator should look at. The keyword arguments become keys of the JSON object."""
    _log(logging.WARNING, event, fields)


def error(event: str, exception: Exception, **fields: Any) -> None:
    """Logs an error of the server with its traceback. The keyword arguments become keys of the JSON object."""
    _log(logging.ERROR, event, fields, (type(exception), exception, exception.__traceback__))


def _log(level: int, event: str, fields: dict[str, Any], exc_info: Any = None) -> None:
    if _LOGGER.isEnabledFor(level):
        # Faster than Logger.log, which looks for the line of code that called it.
        _LOGGER.handle(_LOGGER.makeRecord(_LOGGER.name, level, "", 0, event, (), exc_info, extra={"fields": fields}))
