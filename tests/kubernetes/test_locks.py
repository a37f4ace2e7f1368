"""Locks of the images: complete, pinned, hashed, and of the versions that the tests run with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "deployments" / "kubernetes"
EXTRAS = {"control": ("control", "kubernetes", "postgres"), "agent": ("train",)}


@pytest.mark.parametrize("image", EXTRAS)
def test_a_lock_names_every_requirement_by_version_and_hash(image: str) -> None:
    """`make lock` was run after the last change of pyproject.toml or constraints.txt."""
    locked = _locked(IMAGES / f"{image}.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for extra in EXTRAS[image]:
        asked += project["optional-dependencies"][extra]
    for requirement in map(Requirement, asked):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} is locked as {version}"


@pytest.mark.parametrize("image", EXTRAS)
def test_images_have_the_versions_that_were_tested(image: str) -> None:
    """Those of constraints.txt, for each package that it names."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {
        canonicalize_name(name): version for name, version in (x.split("==") for x in lines if "==" in x)
    }
    others = {
        name: (version, tested[name])
        for name, version in _locked(IMAGES / f"{image}.lock").items()
        if tested.get(name, version) != version
    }
    assert others == {}


def test_images_are_built_from_the_locks() -> None:
    """Each by its own, with hashes required, and nothing installed beside them but the project's wheel."""
    installs = re.findall(r"pip install (.+)", (IMAGES / "Dockerfile").read_text())
    assert installs == [
        line
        for image in EXTRAS
        for line in (
            f"--no-cache-dir --require-hashes --no-deps -r /tmp/{image}.lock",
            "--no-cache-dir --no-deps --no-index /wheels/*.whl",
        )
    ]


def _locked(path: Path) -> dict[str, str]:
    """Versions by name; fails where one has no hash or is not pinned."""
    found: dict[str, str] = {}
    for entry in path.read_text().replace("\\\n", " ").splitlines():
        pinned = re.fullmatch(r"([a-z0-9.\[\]-]+)==(\S+)((?: +--hash=sha256:[0-9a-f]{64})+) *", entry)
        assert pinned, f"{path.name}: not pinned with hashes: {entry[:80]}"
        found[canonicalize_name(pinned[1].partition("[")[0])] = pinned[2]
    return found
