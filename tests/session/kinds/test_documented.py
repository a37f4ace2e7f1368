"""The documentation's table of kinds has the rows that the tests have."""

from __future__ import annotations

from tests.session.harness import REPOSITORY
from tests.session.kinds.trainings import TRAININGS
from tests.session.kinds.values import VALUES


def test_every_group_of_kinds_is_a_row_of_the_table() -> None:
    """And there is no row without kinds behind it."""
    text = (REPOSITORY / "docs" / "checkpoints.md").read_text()
    table = text.partition("| comes back exactly |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = {line.split("|")[1].strip() for line in table.splitlines()}
    assert rows == {each.group for each in (*VALUES, *TRAININGS) if not each.refused}


def test_kinds_have_names_of_their_own() -> None:
    """Each of the many is told by its name, and none was lost by a double one."""
    names = [each.name for each in (*VALUES, *TRAININGS)]
    assert len(names) == len(set(names)) >= 70
