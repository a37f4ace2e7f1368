"""Files that no reader of YAML should have to trust: each is read or refused in one sentence, and soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.policies.config import yaml_source
from holdfast.policies.config.policy_file import parse


def refusal(tmp_path: Path, text: str) -> str:
    """Return why a job file of this text is refused."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        parse(path, "job file")
    return str(caught.value)


def levels(first: str, each: str, many: int, depth: int) -> str:
    """Return ``depth`` values of which each holds the one above it ``many`` times."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {each.format(', '.join([f'*a{n - 1}'] * many))}" for n in range(1, depth + 1)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        levels("[x, x]", "[{}]", 9, 8),
        levels("{k: v}", "{{l: [{}]}}", 9, 8),
        levels("{k: v}", "{{<<: [{}]}}", 9, 8),
    ],
    ids=["lists", "mappings", "merges"],
)
def test_values_that_hold_one_another_many_times_are_refused(tmp_path: Path, text: str) -> None:
    """A few lines stand for billions of values, which were all visited."""
    assert f"more than {yaml_source.MOST_VALUES:,} values" in refusal(tmp_path, text)


def test_a_key_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Its text, with all that it holds many times, was made before anything was counted."""
    inner = [f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "line 1: a key is a list" in refusal(tmp_path, f"? [&a0 [x, x], {', '.join(inner)}]\n: x\n")


def test_one_long_text_in_many_places_is_refused(tmp_path: Path) -> None:
    """A message about these values would be as long as all of them."""
    text = "x" * 100_000
    assert "more than" in refusal(tmp_path, f"a: &a {text}\nb: [{', '.join(['*a'] * 1000)}]\n")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be data, or a device without an end."""
    monkeypatch.setattr(yaml_source, "MOST_BYTES", 100)
    assert "more than 100 bytes" in refusal(tmp_path, "# " + "x" * 100)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("9" * 5000, "9999"),
        ("2026-02-30", "2026-02-30"),
        ("!!bool maybe", "maybe"),
        ("!!int ''", "''"),
        ("!!float x", "x"),
        ("!!timestamp noon", "noon"),
        ("0x_", "0x_"),
        (r'"\ud800"', r"\ud800"),
    ],
)
def test_a_value_that_cannot_be_made_is_named_with_its_line(tmp_path: Path, value: str, shown: str) -> None:
    """Each ended in a traceback, or in one when it was sent."""
    message = refusal(tmp_path, f"name: gpt\nx: {value}\n")
    assert "line 2" in message
    assert shown in message
    assert len(message) < 1000


def test_what_aliases_and_merges_are_for_is_read(tmp_path: Path) -> None:
    """One value in some places, and a mapping laid under others."""
    path = tmp_path / "job.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    source = parse(path, "job file")
    assert source.values == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}
    assert source.lines["b", "y"] == 2


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("010", 10),
        ("-007", -7),
        ("08", 8),
        ("1_000", 1000),
        ("0x10", 16),
        ("010.5", 10.5),
        ("1.0e+3", 1000.0),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
    ],
)
def test_a_number_is_what_it_looks_like(tmp_path: Path, written: str, value: object) -> None:
    """YAML 1.1 takes 010 for eight, and 1:30 for ninety."""
    path = tmp_path / "job.yaml"
    path.write_text(f"x: {written}\n")
    assert parse(path, "job file").values == {"x": value}
