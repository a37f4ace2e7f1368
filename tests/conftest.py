"""Fast tests first: what is broken at a desk should not wait for a whole site to start."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# Tables are as wide as this, wherever the tests run; rich looks once, when the CLI is imported.
os.environ["COLUMNS"] = "200"

# A timing never decides a test. `.ci/run` asks for "repeatable": what it refuses, a second run refuses as well.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("explore"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "explore"))


# Tests of these folders share a cluster, its ports or its network.
TOGETHER = ("clusters", "kubernetes", "network")
# The longest stream first; what waits for a control plane that is still being built, last.
ORDER = {"site": 0, "kubernetes": 2}


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each test its stream before xdist looks for it."""
    item.add_marker(pytest.mark.xdist_group(stream(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests, then those with real processes, each in their order."""
    items.sort(key=lambda item: (item.get_closest_marker("e2e") is not None, ORDER.get(stream(item), 1)))


def stream(item: pytest.Item) -> str:
    """Tests of one stream run in one process of ``--dist loadgroup``, one after the other, and share its fixtures."""
    if "whole_site" in getattr(item, "fixturenames", ()):
        return "site"
    path = item.path.relative_to(TESTS)
    if "slurm" in path.name:
        return "clusters"
    return path.parts[0] if path.parts[0] in TOGETHER else str(path)


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
