"""Fast tests first: what is broken at a desk should not wait for a whole site to start."""

from __future__ import annotations

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests, then those with real processes, each in their order."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)


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
