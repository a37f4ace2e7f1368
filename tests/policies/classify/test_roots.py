"""The rank that failed first, among the hundred that then lost their peer."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.classify.roots import separate
from tests.policies.make import NOW, alert, rank_exit


def echo(rank: int, at: float) -> Alert:
    return rank_exit(rank, at, cascade=True, error_type="DistBackendError")


def log_line(rank: int, cause: str, *, cascade: bool = False) -> Alert:
    return alert(AlertKind.RANK_LOG, rank=rank, evidence={"cause": cause, "cascade": cascade})


def ranks(alerts: tuple[Alert, ...]) -> list[int | None]:
    return [each.rank for each in alerts]


def test_the_root_is_the_one_that_lost_no_peer() -> None:
    """However early the others reported."""
    found = separate([*(echo(n, NOW + n / 100) for n in range(99)), rank_exit(99, NOW + 5, signal="SIGSEGV")])
    assert ranks(found.roots) == [99]
    assert len(found.cascades) == 99
    assert ranks(found.cascades)[0] == 0


def test_a_killed_rank_outweighs_an_exception() -> None:
    """User code that fails because a peer died is a cascading failure that was not recognised."""
    found = separate([rank_exit(0, NOW, error_type="KeyError"), rank_exit(1, NOW + 1, signal="SIGKILL")])
    assert ranks(found.roots) == [1, 0]


def test_the_ranks_own_time_counts() -> None:
    """Agents see an exit later than it happened, and not all equally late."""
    late = rank_exit(0, NOW, error_type="ValueError", failed_at=NOW - 1)
    early = rank_exit(1, NOW + 1, error_type="ValueError", failed_at=NOW - 2)
    assert ranks(separate([late, early]).roots) == [1, 0]


def test_a_log_that_spoke_of_a_cause_makes_a_cascading_failure_a_root() -> None:
    """An illegal memory access, and then the peers were gone."""
    found = separate([echo(0, NOW), echo(1, NOW + 1), log_line(1, "gpu")])
    assert (ranks(found.roots), ranks(found.cascades)) == ([1], [0])


def test_a_log_that_speaks_of_peers_or_the_network_does_not() -> None:
    """Both are signs of a cascading failure."""
    lines = [log_line(0, "peer", cascade=True), log_line(0, "network")]
    assert separate([echo(0, NOW), *lines]).roots == ()


def test_log_lines_change_nothing_when_there_is_a_root() -> None:
    """The root has its own cause."""
    found = separate([rank_exit(0, NOW, error_type="OSError"), echo(1, NOW), log_line(1, "gpu")])
    assert ranks(found.roots) == [0]


@st.composite
def reports(draw: st.DrawFn) -> list[Alert]:
    """Exits of up to twelve ranks, some with lines in their logs."""
    found: list[Alert] = []
    for number in range(draw(st.integers(0, 12))):
        evidence: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {"cascade": True},
                    {"cascade": False, "error_type": "ValueError"},
                    {"cascade": False, "signal": "SIGKILL"},
                    {"cascade": False, "error_type": "KeyError", "failed_at": NOW - 5},
                ]
            )
        )
        found.append(rank_exit(number, NOW + draw(st.integers(0, 3)), **evidence))
        if draw(st.booleans()):
            found.append(log_line(number, draw(st.sampled_from(["gpu", "peer", "network", "code"]))))
    return found


@given(reports(), st.randoms())
def test_the_order_of_arrival_does_not_matter(alerts: list[Alert], random: Any) -> None:
    """Nothing is lost or doubled, and the answer is the same."""
    found = separate(alerts)
    shuffled = list(alerts)
    random.shuffle(shuffled)
    assert separate(shuffled) == found
    exits = [each for each in alerts if each.kind is AlertKind.RANK_EXIT]
    assert len(found.roots) + len(found.cascades) == len(exits)
    if any(not each.evidence["cascade"] for each in exits):
        assert not any(each.evidence["cascade"] for each in found.roots)


def test_a_line_that_a_rank_lived_with_for_long_made_no_root_of_it() -> None:
    """A disk that was full an hour ago, and a peer that is gone now."""
    gone = [echo(rank, NOW) for rank in (0, 1)]
    old = log_line(1, "disk_space").model_copy(update={"at": NOW - 3600})
    assert separate([*gone, old]).roots == ()
    near = log_line(1, "gpu").model_copy(update={"at": NOW - 1800})
    assert ranks(separate([*gone, old, near]).roots) == [1]


def test_a_rank_that_died_after_its_epoch_was_over_is_no_root() -> None:
    """A kept process that was killed while it waited explains nothing that came before."""
    waited = rank_exit(5, NOW - 1, signal="SIGKILL", waited=True)
    found = separate([echo(0, NOW), waited, log_line(0, "gpu")])
    assert (ranks(found.roots), ranks(found.cascades), ranks(found.waited)) == ([0], [], [5])
