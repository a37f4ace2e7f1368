"""A flow with one task that logs one line: what a stock Prefect worker is timed with."""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow, get_run_logger, task


@task
def first() -> None:
    """Log one line."""
    get_run_logger().info("first task line")


@flow
def stock() -> None:
    """Run the task."""
    first()


if __name__ == "__main__":
    source = flow.from_source(str(Path(__file__).parent), entrypoint=f"{Path(__file__).name}:stock")
    for pool in sys.argv[1:]:
        source.deploy(name=pool, work_pool_name=pool, print_next_steps=False)  # type: ignore[union-attr]
