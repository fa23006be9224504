"""Log lines: JSON, one event a line, on standard error. Events have fields; none may hold what a client sent (S19)."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import structlog


def configure_logs(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def loop_exception_handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An error outside any request: its type only, since its text may quote input. (Any: asyncio's own signature.)"""
    error = context.get("exception")
    structlog.get_logger("router.loop").error(
        "unhandled_error", error=type(error).__name__, place=place_of(error) if error else context.get("message", "")
    )


def place_of(error: BaseException) -> str:
    """Where it was raised. An exception's own text and arguments may hold what a client sent; its place cannot."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place, trace = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}", trace.tb_next
    return place
