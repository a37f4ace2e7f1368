"""Fast tests first: what is broken at a desk should not wait for a whole site to start."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Tables are as wide as this, wherever the tests run; rich looks once, when the CLI is imported.
os.environ["COLUMNS"] = "200"

# A timing never decides a test. `.ci/run` asks for "repeatable": what it refuses, a second run refuses as well.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("explore"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "explore"))


# Tests of these folders share a cluster, its ports or its network.
TOGETHER = ("clusters", "kubernetes", "network")
# These of tests/e2e start a site of their own.
APART = ("test_failover.py", "test_fleet.py", "test_storm.py", "test_team_site.py")
# The longest stream first; what waits for a control plane that is still being built, last.
ORDER = {"site": 0, "kubernetes": 2}


class Streams(LoadScopeScheduling):
    """Tests of one stream run in one process, one after the other, and share its fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        return stream(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Streams | None:
    """Streams instead of scopes; xdist's groups are not seen by the pytest in use."""
    return Streams(config, log) if config.getoption("dist") == "loadscope" else None


def stream(nodeid: str) -> str:
    """The stream of a test: the common site's, a cluster's, or its file's."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    folder, _, name = path.partition("/")
    if folder == "e2e" and name not in APART:
        return "site"
    return "clusters" if "slurm" in name else folder if folder in TOGETHER else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests, then those with real processes, each in their order."""
    items.sort(
        key=lambda item: (item.get_closest_marker("e2e") is not None, ORDER.get(stream(item.nodeid), 1))
    )


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
