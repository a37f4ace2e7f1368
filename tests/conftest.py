"""Fast tests first: what is broken at a desk should not wait for a whole site to start."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Tables are as wide as this, wherever the tests run; rich looks once, when the CLI is imported.
os.environ["COLUMNS"] = "200"

# A timing never decides a test. `.ci/run` asks for "repeatable": what it refuses, a second run refuses as well.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("explore"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "explore"))


LONGEST = (
    "tests/storage/checkpoints/load/test_from_ranks.py",
    "tests/deployments/test_supervisor_up.py",
    "tests/deployments/worker/test_register.py",
    "tests/storage/checkpoints/test_resharding.py",
    "tests/deployments/worker/test_worker.py",
    "tests/clusters/test_slurm_driver.py",
    "tests/deployments/worker/test_offline.py",
)
"""Where two files with real processes run side by side, these begin, so that none is left alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests, then those with real processes, the longest files first; the others in their order."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        file = item.nodeid.partition("::")[0]
        return item.get_closest_marker("e2e") is not None, LONGEST.index(file) if file in LONGEST else len(
            LONGEST
        )

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Keep the collector from going through every module again and again: a tenth of the time of small tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says what the site knew: machines with reasons, incidents, the last words of each service."""
    report = yield
    if report.failed:
        given = getattr(item, "funcargs", {}).values()
        sites = {id(site): site for site in (getattr(each, "site", each) for each in given)}
        told = [site.evidence() for site in sites.values() if hasattr(site, "evidence")]
        report.sections += [("site", each) for each in told]
    return report
