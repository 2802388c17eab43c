"""Log formats: text lines or JSON objects; control characters are escaped.

Message bodies, message keys, tokens and secrets are never logged.
"""

from __future__ import annotations

import json
import logging
import time

from millrace.server.auth.audit import plain


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update(_more(record))
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower()} {plain(record.getMessage())}"
        for name, value in _more(record).items():
            line += f" {name}={plain(str(value))}"
        if record.exc_info:
            return f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _more(record: logging.LogRecord) -> dict[str, object]:
    """Return the additional fields of a log record."""
    found = record.__dict__.get("fields")
    return found if isinstance(found, dict) else {}


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def set_up(level: str, form: str) -> None:
    """Configure logging to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    logger = logging.getLogger("millrace")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
