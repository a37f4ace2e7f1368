"""The documentation's table of kinds has the rows that the tests have."""

from __future__ import annotations

from tests.session.harness import REPOSITORY
from tests.session.kinds.layouts import REFUSED
from tests.session.kinds.trainings import TRAININGS
from tests.session.kinds.values import VALUES


def test_every_group_of_kinds_is_a_row_of_the_table() -> None:
    """And there is no row without kinds behind it."""
    assert _table().keys() == {each.group for each in (*VALUES, *TRAININGS) if not each.refused}


def test_the_column_of_layouts_has_what_is_expected_of_the_kinds() -> None:
    """Groups of which a kind is refused elsewhere, and those of what each rank has for itself."""
    by_name = {each.name: each.group for each in TRAININGS}
    expected = dict.fromkeys(by_name.values(), "exactly")
    expected |= dict.fromkeys((by_name[name] for name in REFUSED), "exactly, or refused")
    assert _table() == expected | {each.group: "by rank" for each in VALUES if not each.refused}


def _table() -> dict[str, str]:
    """The table's entries on kinds elsewhere, by its rows' names."""
    text = (REPOSITORY / "docs" / "checkpoints.md").read_text()
    table = text.partition("| comes back exactly | elsewhere |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[each.strip() for each in line.split("|")] for line in table.splitlines()]
    return {row[1]: row[3] for row in rows}


def test_kinds_have_names_of_their_own() -> None:
    """Reports identify each of the many by its name, and none was lost by a double one."""
    names = [each.name for each in (*VALUES, *TRAININGS)]
    assert len(names) == len(set(names)) >= 70
