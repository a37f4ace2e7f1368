"""Lists of names in one line of a message."""

from __future__ import annotations

import pytest

from holdfast.policies.join_names import join_names


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "none"),
        (1, "m0"),
        (3, "m0, m1, m2"),
        (4, "m0, m1, m2 and 1 more"),
        (750, "m0, m1, m2 and 747 more"),
    ],
)
def test_a_line_stays_short_however_many_there_are(count: int, text: str) -> None:
    """Hundreds of machines fail at once, too."""
    assert join_names((f"m{number}" for number in range(count)), most=3) == text
