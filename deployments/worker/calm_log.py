"""Logs of runs without the traceback of a step that an end from outside broke off, such as a person's stop."""

from __future__ import annotations

import logging

from holdfast.errors import StaleError

_LOGGERS = ("prefect.task_runs", "prefect.flow_runs")


class _WithoutTraceback(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the line, which names the reason; where in the step it came is of no use to anyone."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, StaleError):
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
            record.msg, record.args, record.exc_info = f"broken off: {error}", (), None
        return True


def calm_log() -> None:
    """Have Prefect's loggers of runs leave it out; once for a process, after Prefect has set up its logging."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_WithoutTraceback())
