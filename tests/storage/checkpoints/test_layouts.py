"""Saved under one layout by Holdfast or by stock torch, loaded under another by the other one."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.storage.checkpoints.test_resharding import ranks

pytestmark = [pytest.mark.e2e, pytest.mark.torch]

BODIES = "tests.storage.checkpoints.layouts"
FOUR = ("ddp", "fsdp", "hsdp", "tp_fsdp", "ep", "ep_fsdp", "ep_ddp", "pp_fsdp")
EIGHT = ("pp_dp_tp", "hsdp_tp", "pp_ep", "fsdp_8")
WAYS = (("ours", "stock torch"), ("ours", "holdfast"), ("stock", "start_from"))
REGULAR = [("ep_fsdp", "tp_fsdp"), ("tp_fsdp", "ep"), ("pp_fsdp", "ep_ddp")]


def every_way(pairs: Any) -> list[tuple[str, str, str, str]]:
    """The cells of pairs of layouts."""
    return [(who, saved, by, loaded) for saved, loaded in pairs for who, by in WAYS]


def require_all(results: list[dict[Any, str]], wanted: list[Any]) -> None:
    """No rank met an error in any cell."""
    assert all(each.keys() == set(wanted) for each in results)
    wrong = {cell: [each[cell] for each in results] for cell in wanted if any(each[cell] for each in results)}
    assert not wrong, "\n".join(f"{cell}: {errors}" for cell, errors in wrong.items())


@pytest.mark.parametrize(
    "pairs",
    [REGULAR, pytest.param([*product(FOUR, FOUR)], marks=pytest.mark.thorough, id="all")],
)
def test_every_element_is_where_it_belongs(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    """Experts over their own mesh; tied, frozen, unused, complex and bf16 tensors; also what had no state has none."""
    wanted = every_way(pairs)
    require_all(ranks(4, f"{BODIES}:cells", folder=tmp_path, wanted=wanted), wanted)


@pytest.mark.thorough
def test_three_dimensions_load_each_other_and_two(tmp_path: Path) -> None:
    """Eight ranks save, eight load under another layout, and then four do."""
    wanted = every_way(product(EIGHT, EIGHT))
    require_all(ranks(8, f"{BODIES}:cells", folder=tmp_path, wanted=wanted), wanted)
    fewer = every_way(product(EIGHT, ("fsdp", "tp_fsdp", "ep_fsdp", "pp_fsdp")))
    require_all(ranks(4, f"{BODIES}:load_cells", folder=tmp_path, wanted=fewer), fewer)


@pytest.mark.thorough
def test_more_ranks_load_what_fewer_saved(tmp_path: Path) -> None:
    """Four ranks save, eight load in three dimensions."""
    saved = every_way((each, each) for each in FOUR)
    require_all(ranks(4, f"{BODIES}:cells", folder=tmp_path, wanted=saved), saved)
    wanted = every_way(product(FOUR, EIGHT))
    require_all(ranks(8, f"{BODIES}:load_cells", folder=tmp_path, wanted=wanted), wanted)
