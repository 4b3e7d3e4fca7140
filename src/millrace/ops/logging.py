"""Logs of a process: events with fields, JSON lines in a bounded set of files, or readable lines on a terminal.

In: `get_logger("room").info("leader moved", topic=…)` from anywhere, and whatever libraries log by the standard way.
Out: one line per event; every value has passed `redact`. A message says what happened; ids go into fields.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from typing import Any

import structlog

from millrace.ops.config import LoggingConfig
from millrace.ops.secrets import redact

get_logger = structlog.stdlib.get_logger


def configure(config: LoggingConfig, *, path: str | None) -> None:
    """Sends all logs of this process to `path` (rotated within the configured bound), or to standard error."""
    handler = _handler(config, path)
    render: Any
    if path is None and sys.stderr.isatty():
        render = structlog.dev.ConsoleRenderer()
    else:
        render = structlog.processors.JSONRenderer(default=str)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _redacted, render],
    ))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    for chatty in ("uvicorn.access", "uvicorn.error", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_shared(),
                    structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _handler(config: LoggingConfig, path: str | None) -> logging.Handler:
    if path is None:
        return logging.StreamHandler(sys.stderr)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return logging.handlers.RotatingFileHandler(
        path, maxBytes=config.file_bytes_max, backupCount=config.files_kept, encoding="utf-8"
    )


def _shared() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]


def _redacted(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {key: redact(value, str(key)) for key, value in event.items()}
