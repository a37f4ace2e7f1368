"""Every kind of training comes back under another layout exactly and trains on, or is refused with its path.

``layouts.py`` has what is expected of each kind.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.kinds.layouts import REFUSED, UNTRAINED
from tests.session.kinds.trainings import TRAININGS
from tests.storage.checkpoints.test_resharding import ranks

pytestmark = [pytest.mark.e2e, pytest.mark.torch]

MOVES = "tests.session.kinds.moves"
REGULAR = [
    "optimizer: Adam",
    "optimizer: history",
    "optimizer: wrapped",
    "optimizer: eight_bit",
    "optimizer of its part of parameters: plain",
    "optimizer of its part of parameters: plain, at once",
    "experts without a gradient: Adam",
    "parameter groups",
    "scheduler: ReduceLROnPlateau",
    "module: tied weights",
    "module: extra state, tensor that grows",
    "module: batch norm, dropout",
    "exponential average of weights",
    "adapters and an average of their own",
    "master weights by hand",
]
"""A kind of each way to come back, or to be refused."""


def test_kinds_have_the_names_of_the_table() -> None:
    """No expectation is for a kind that is not there."""
    assert {*REFUSED, *UNTRAINED, *REGULAR, *NOT_AT_THREE, *NOT_AT_FOUR} <= {each.name for each in TRAININGS}


def _require(found: list[dict[str, str]]) -> None:
    assert not found[0], "\n".join(f"{where}: {what}" for where, what in found[0].items())


def test_many_kinds_come_back_under_another_layout(tmp_path: Path) -> None:
    """From all of each parameter to parts of it."""
    wanted = [("ddp", "fsdp", "shards")]
    _require(ranks(2, f"{MOVES}:cells", folder=tmp_path, wanted=wanted, names=REGULAR))


NOT_AT_FOUR = {
    "optimizer: LBFGS": "torch flattens no parameter that is unevenly sharded",
    "optimizer: LBFGS, line search": "as above",
    "optimizer: Muon": "torch's step changes placements in place",
    "optimizer: galore": "as above",
}
"""Kinds whose own step cannot go on where FSDP2 shards over four ranks, and why."""


def _of_four() -> list[str]:
    return [each.name for each in TRAININGS if each.name not in NOT_AT_FOUR]


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loaded", ["hsdp", "tp_fsdp", "fsdp"])
def test_every_kind_comes_back_under_a_mesh_of_two_dimensions(loaded: str, tmp_path: Path) -> None:
    """On four ranks; from the layouts that replicate parts, or divide them twice, and from whole parameters."""
    wanted = [(saved, loaded, "shards") for saved in ("ddp", "hsdp", "tp_fsdp")]
    _require(ranks(4, f"{MOVES}:cells", folder=tmp_path, wanted=wanted, names=_of_four()))


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("by", "saved", "loaded"),
    [(2, "fsdp", "hsdp"), (2, "tp", "tp_fsdp"), (4, "hsdp", "fsdp"), (4, "tp_fsdp", "tp")],
)
def test_every_kind_comes_back_on_a_mesh_of_another_size(
    by: int, saved: str, loaded: str, tmp_path: Path
) -> None:
    """A job of two ranks goes on at four, on a mesh of two dimensions, and one of four at two."""
    names = _of_four()
    ranks(by, f"{MOVES}:saved_for_others", folder=tmp_path, layout=saved, loaded=loaded, names=names)
    args = {"saved": saved, "layout": loaded, "names": names, "tier": "shards", "by": by}
    _require(ranks(6 - by, f"{MOVES}:loaded_from_others", folder=tmp_path, **args))


NOT_AT_THREE = {
    "optimizer: LBFGS": "torch flattens no parameter that is unevenly sharded",
    "optimizer: LBFGS, line search": "as above",
    "optimizer: Muon": "torch's step changes placements in place",
}
"""Kinds whose own step cannot go on at three ranks, and why."""


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tier", ["shards", "s3"])
def test_every_kind_comes_back_at_another_number_of_ranks(tier: str, tmp_path: Path) -> None:
    """Saved by two, loaded by three: some parts are uneven, and some are empty."""
    names = [each.name for each in TRAININGS if each.name not in NOT_AT_THREE]
    ranks(2, f"{MOVES}:saved_for_others", folder=tmp_path, layout="fsdp", loaded="fsdp", names=names)
    _require(
        ranks(
            3,
            f"{MOVES}:loaded_from_others",
            folder=tmp_path,
            saved="fsdp",
            layout="fsdp",
            names=names,
            tier=tier,
            by=2,
        )
    )


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tier", ["shards", "s3"])
@pytest.mark.parametrize("saved", ["ddp", "fsdp", "tp"])
def test_every_kind_comes_back_under_another_layout(saved: str, tier: str, tmp_path: Path) -> None:
    """Also under the one that saved it."""
    wanted = [(saved, loaded, tier) for loaded in ("ddp", "fsdp", "tp")]
    _require(ranks(2, f"{MOVES}:cells", folder=tmp_path, wanted=wanted))
