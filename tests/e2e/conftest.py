"""One site for all end-to-end tests: the control plane and its machines start once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site

MACHINES = 6
_NAMES: pytest.StashKey[dict[str, int]] = pytest.StashKey()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here takes real processes, and the time that they need."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(800))


@pytest.fixture(scope="package")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site. With HOLDFAST_E2E_HOME it is kept there, up, for the next run of a few tests."""
    kept = os.environ.get("HOLDFAST_E2E_HOME")
    home = Path(kept) if kept else tmp_path_factory.mktemp("site") / ".holdfast"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "PREFECT_"))]:
            patch.delenv(name)
        patch.setenv("HOLDFAST_HOME", str(home))
        # Machines inherit it: faults of their arithmetic are taken.
        patch.setenv("HOLDFAST_ARM_FAULTS", "1")
        site = Site.up(home, MACHINES)
        yield site
        if not kept:
            site.down()


@pytest.fixture
def site(whole_site: Site) -> Iterator[Site]:
    """The site at rest; whatever a test leaves behind is stopped and repaired."""
    whole_site.wait_well()
    yield whole_site
    whole_site.settle()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own for its job."""
    plain = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    taken = request.config.stash.setdefault(_NAMES, {})
    taken[plain[:45]] = taken.get(plain[:45], 0) + 1
    return f"{plain[:45].strip('-')}-{taken[plain[:45]]}x{os.getpid()}"
