"""Order of tests, fast ones first: a plain mistake should show before a whole site is started."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Tables are as wide as this, wherever the tests run; rich looks once, when the CLI is imported.
os.environ["COLUMNS"] = "200"

# A timing never decides a test. `.ci/run` asks for "repeatable": what it refuses, a second run refuses as well.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("explore"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "explore"))


TOGETHER = ("tests/e2e", "tests/clusters", "tests/kubernetes", "tests/network")
"""Folders whose tests share a site or a cluster: one process runs all of them. They begin, as they take longest."""

LONGEST = (
    "tests/nemesis/test_nemesis.py",
    "tests/session/test_ranks.py",
    "tests/integrations/test_lightning.py",
    "tests/storage/checkpoints/load/test_from_ranks.py",
    "tests/deployments/test_supervisor_up.py",
    "tests/deployments/worker/test_register.py",
    "tests/storage/checkpoints/test_resharding.py",
    "tests/deployments/worker/test_worker.py",
    "tests/clusters/test_slurm_driver.py",
    "tests/deployments/worker/test_offline.py",
)
"""Where two files with real processes run side by side, these come next, so that none is left alone at the end."""


def unit_of_work(nodeid: str) -> str:
    """Return what one process runs as a whole: the folder, if its tests share something, else the file."""
    file = nodeid.partition("::")[0]
    folder = file.rpartition("/")[0]
    return folder if folder in TOGETHER else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests, then those with real processes, the longest first; the others in their order."""
    first = (*TOGETHER, *LONGEST)

    def place(item: pytest.Item) -> tuple[bool, int]:
        unit = unit_of_work(item.nodeid)
        return item.get_closest_marker("e2e") is not None, first.index(unit) if unit in first else len(first)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, tests that share a site or a cluster stay in one process."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415  (only where it is used)

    class Units(LoadFileScheduling):
        """Files, and folders of :data:`TOGETHER`."""

        def _split_scope(self, nodeid: str) -> str:
            return unit_of_work(nodeid)

    return Units(config, log)


def pytest_collection_finish() -> None:
    """Share what is the same in all tests; keep the collector from going through every module again and again.

    The latter is a tenth of the time of small tests.
    """
    if "holdfast.storage.ledger" in sys.modules:
        from tests import warm  # noqa: PLC0415  (only where tests use a ledger)

        warm.share()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the state of the site: machines with reasons, incidents, the last words of each service."""
    report = yield
    if report.failed:
        given = getattr(item, "funcargs", {}).values()
        sites = {id(site): site for site in (getattr(each, "site", each) for each in given)}
        known = [site.evidence() for site in sites.values() if callable(getattr(site, "evidence", None))]
        report.sections += [("site", each) for each in known]
    return report
