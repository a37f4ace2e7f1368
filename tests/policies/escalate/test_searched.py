"""When a slow job is stopped again for a search that found no machine before."""

from __future__ import annotations

from holdfast.policies.escalate.searched import FOR_S, Look, why_not_again

T0 = 1_000_000.0
HELPED_S = 3600.0


def look(at_s: float, *, until_s: float | None = None, stopped: bool = False, found: bool = False) -> Look:
    """An earlier incident, which was closed a minute after it was opened."""
    until = T0 + (at_s + 60 if until_s is None else until_s)
    return Look(incident="gpt-1", opened_at=T0 + at_s, until=until, stopped=stopped, found=found)


def why(at_s: float, *looks: Look) -> str:
    return why_not_again(T0 + at_s, looks, HELPED_S)


def test_a_first_slow_pace_is_searched() -> None:
    """Nothing came before."""
    assert why(0) == ""


def test_a_search_that_found_no_machine_is_not_repeated_minutes_later() -> None:
    """It would find as much."""
    assert "15 min before (gpt-1)" in why(900, look(0, stopped=True))


def test_a_restart_that_helped_for_a_while_is_done_again() -> None:
    """The job was not slow for longer than an hour."""
    assert why(3700, look(0, stopped=True)) == ""
    assert why(3600, look(0, stopped=True))


def test_a_search_that_found_a_machine_says_nothing_of_another_one() -> None:
    """The next one may have come with its replacement."""
    assert why(900, look(0, stopped=True, found=True)) == ""


def test_a_job_that_was_slow_all_the_time_is_searched_once_a_day() -> None:
    """Looks that left it running lie between, an hour apart."""
    hours = [look(3600.0 * hour, until_s=3600.0 * hour + 3600) for hour in range(1, 30)]
    assert why(10 * 3600, look(0, stopped=True), *hours[:9])
    assert why(FOR_S + 3600, look(0, stopped=True), *hours[:24]) == ""


def test_looks_that_left_it_running_alone_forbid_nothing() -> None:
    """No search was done: there was no standby, for example."""
    assert why(900, look(0)) == ""
