"""A step that a person's stop broke off is one line in the worker's log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from prefect.logging.loggers import get_logger

from holdfast.deployments.worker.calm_log import calm_log
from holdfast.errors import RecoveryError, StaleError


@pytest.fixture(params=["prefect.task_runs", "prefect.flow_runs"])
def written(request: pytest.FixtureRequest) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger of Prefect's, and what it writes."""
    logger, text = get_logger(request.param), io.StringIO()
    handler, filters, others = logging.StreamHandler(text), list(logger.filters), list(logger.handlers)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.handlers = [handler]  # that of Prefect wants a run
    calm_log()
    yield logger, text
    logger.handlers = others
    for name in ("prefect.task_runs", "prefect.flow_runs"):
        other = logging.getLogger(name)
        other.filters = filters if other is logger else other.filters[:-1]


def test_an_end_from_outside_has_no_traceback_and_an_error_has(
    written: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, text = written
    for error in (StaleError("job 'gpt' epoch 3: it was stopped"), RecoveryError("no first step")):
        try:
            raise error
        except Exception:
            logger.exception("Task run failed with exception: %r", error)
    stale, failed = text.getvalue().split("\n", 1)
    assert stale == "INFO broken off: job 'gpt' epoch 3: it was stopped"
    assert failed.startswith("ERROR Task run failed with exception: RecoveryError")
    assert "Traceback" in failed
