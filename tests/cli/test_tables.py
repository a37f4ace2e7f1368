"""Tables on narrow terminals, and where there is no terminal."""

from __future__ import annotations

import pytest

from holdfast.cli.output import ago, print_table, state

COLUMNS = ("NAME", "STATE", "JOB", "AGENT", "INCARNATION", "SEEN", "CORDONED BECAUSE")
REASON = "Xid 79: the GPU fell off the bus, three times within the hour, and once more after its reset"
ROWS = (
    ("m0", state("active"), "gpt", "127.0.0.1:40001", "0123abcd", "2 s ago", ""),
    ("m1", state("cordoned"), None, "127.0.0.1:40002", "4567cdef", "12 s ago", REASON),
)


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_table("Machines", COLUMNS, ROWS, "none")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 79])
def test_what_does_not_fit_beside_one_another_stands_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """No word is broken that fits, no line is too long, and each value has its column's name before it."""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = printed(capsys)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert [each for each in words if each in {"127.0.0.1:40001", "127.0.0.1:40002"}]
    together = " ".join(words)
    assert (
        "m0 STATE active JOB gpt AGENT 127.0.0.1:40001 INCARNATION 0123abcd SEEN 2 s ago m1 STATE" in together
    )
    assert together.endswith(f"CORDONED BECAUSE {REASON}")


def test_what_fits_is_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts are folded in their own column, all else stays in one line."""
    monkeypatch.setenv("COLUMNS", "110")
    lines = printed(capsys)
    assert max(map(len, lines)) <= 110
    assert lines[1].split() == ["NAME", "STATE", "JOB", "AGENT", "INCARNATION", "SEEN", "CORDONED", "BECAUSE"]
    assert lines[2].split() == ["m0", "active", "gpt", "127.0.0.1:40001", "0123abcd", "2", "s", "ago"]
    assert len(lines) > 4


def test_without_a_terminal_a_row_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For `grep` and files, whatever the length of its texts."""
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(capsys)
    assert len(lines) == 4
    assert lines[3].endswith(REASON)


def test_a_time_of_another_clock_may_be_to_come() -> None:
    """It was "-3600 s ago"."""
    assert ago(None) == ""
    assert ago(100.0, now=112.0) == "12 s ago"
    assert ago(3700.0, now=100.0) == "60 min ahead of this clock"
