"""Documentation agrees with the code: links, names and generated parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.policies.config.policy import Policy
from holdfast.settings_table import table
from tests import alert_kinds, code_map, job_file, metrics_page
from tests.generated import Part

ROOT = Path(__file__).parents[1]


def test_the_settings_page_is_the_settings_class() -> None:
    """Regenerate with `python -m holdfast.settings_table > docs/settings.md`."""
    assert (ROOT / "docs/settings.md").read_text() == table()


def test_the_map_of_the_code_is_what_packages_say_of_themselves() -> None:
    assert code_map.PART.written == code_map.written_by_code(), "run: python -m tests.code_map"


@pytest.mark.parametrize("part", alert_kinds.PARTS, ids=lambda part: part.name)
def test_the_tables_of_alert_kinds_are_the_declared_rows(part: Part) -> None:
    assert part.written == alert_kinds.written_by_code(part), "run: python -m tests.alert_kinds"


@pytest.mark.parametrize("part", metrics_page.PARTS, ids=lambda part: part.name)
def test_the_tables_of_metrics_are_the_registries(part: Part) -> None:
    assert part.written == metrics_page.written_by_code(part), "run: python -m tests.metrics_page"


def test_the_page_of_the_job_file_has_every_field() -> None:
    assert job_file.PART.written == job_file.written_by_code(), "run: python -m tests.job_file"


def test_the_page_of_the_policy_file_has_every_section() -> None:
    page = (ROOT / "docs/policy-file.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page.partition("## Sections")[2].partition("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(Policy.model_fields)


def test_links_between_pages_lead_somewhere() -> None:
    """Every relative link of every page names a file that exists."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(pages) >= 8
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_incident_class_has_its_playbook_and_is_documented() -> None:
    """A reader finds the playbook for an incident by its file name."""
    text = (ROOT / "docs/how-recovery-works.md").read_text()
    for incident_class in IncidentClass:
        assert (ROOT / f"flows/{incident_class.value}.py").is_file()
        assert f"`{incident_class.value}`" in text


def test_playbooks_that_pages_show_are_those_of_their_files() -> None:
    """A reader may copy them."""
    written = [
        path.read_text()
        for folder in ("flows", "examples/playbooks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    pages = [ROOT / "README.md", ROOT / "docs/writing-a-playbook.md"]
    shown = [
        code
        for page in pages
        for code in re.findall(r"```python\n(@playbook.*?)```", page.read_text(), re.DOTALL)
    ]
    assert len(shown) == 2
    for code in shown:
        assert any(code in text for text in written), code
