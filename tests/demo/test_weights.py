"""Weights are compared by their bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.demo.weights import compare

torch = pytest.importorskip("torch")


def write(path: Path, **model: Any) -> Path:
    torch.save({"step": 3, "digest": path.name, "model": model}, path)
    return path


def test_same_bits_are_equal_whatever_the_file_is_called(tmp_path: Path) -> None:
    """NaN equals NaN of the same bits, bfloat16 and scalars too."""
    tensors = {
        "a": torch.tensor([1.0, float("nan")]),
        "b": torch.ones(3, 2, dtype=torch.bfloat16),
        "c": torch.tensor(7),
    }
    result = compare(write(tmp_path / "one.pt", **tensors), write(tmp_path / "other.pt", **tensors))
    assert result.equal
    assert result.tensors == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.tensor([1.0, 2.0 + 2**-22])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"a": torch.tensor([[1.0, 2.0]])},
        {"b": torch.tensor([1.0, 2.0])},
    ],
)
def test_one_bit_is_a_difference(tmp_path: Path, changed: dict[str, Any]) -> None:
    """So are another type, another shape and a missing name."""
    one = write(tmp_path / "one.pt", a=torch.tensor([1.0, 2.0]))
    result = compare(one, write(tmp_path / "other.pt", **changed))
    assert not result.equal
    assert "a" in result.differing


def test_minus_zero_is_not_zero(tmp_path: Path) -> None:
    """Equal by value, different by bits."""
    one, other = (write(tmp_path / f"{n}.pt", a=torch.tensor([n])) for n in (0.0, -0.0))
    assert not compare(one, other).equal


def test_empty_files_are_not_equal(tmp_path: Path) -> None:
    """Nothing compared is nothing shown."""
    assert not compare(write(tmp_path / "one.pt"), write(tmp_path / "other.pt")).equal
