"""Partitions and sources of a data set that grow, wait for one another, are filtered, or mixed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast import data
from holdfast.errors import SettingsError
from tests.data.dataset_ranks import Ranks
from tests.data.files import ids, write


def test_new_partitions_are_noticed_and_join_the_order(tmp_path: Path) -> None:
    """A batch run that goes over into a stream; after a restore the order is that of the saved listing."""
    write(tmp_path / "2026/11/24/00/a.jsonl", list(range(30)))
    source = data.folder(tmp_path, follow=True, shuffle=4)
    ranks = Ranks(source, 2)
    used = ranks.step() + ranks.step()
    write(tmp_path / "2026/11/24/01/a.jsonl", list(range(100, 130)))
    before = ranks.state
    first = ranks.step()
    state = ranks.state
    ranks.close()
    write(tmp_path / "2026/11/24/01/b.jsonl", list(range(200, 214)))
    write(tmp_path / "2026/11/23/09/late.jsonl", list(range(300, 310)))
    again = Ranks(source, 3, state)
    more = [sample for _ in range(4) for sample in again.step()]
    again.close()
    assert Counter(used + first + more) == Counter(
        [*range(30), *range(100, 130), *range(200, 214), *range(300, 310)]
    )
    from_before = Ranks(source, 1, before)
    known = [[each for each in step if each < 30] for step in (from_before.step(), first)]
    assert known[0] == known[1], (
        "what was listed when it was saved comes as it did; only what follows may differ"
    )
    from_before.close()


def test_a_finished_run_goes_over_into_a_stream(tmp_path: Path) -> None:
    """Its position, of a run without follow, holds in the run with it."""
    write(tmp_path / "2026-11-24/00/a.txt", list(range(24)))
    finite = Ranks(data.folder(tmp_path), 2)
    used = finite.step() + finite.step()
    assert finite.step() == []
    write(tmp_path / "2026-11-24/01/a.txt", list(range(50, 62)))
    stream = Ranks(data.folder(tmp_path, follow=True), 3, finite.state)
    assert sorted(used + stream.step()) == [*range(24), *range(50, 62)]


def test_a_partition_counts_when_all_sources_have_it(tmp_path: Path) -> None:
    for hour, names in enumerate([("web", "code"), ("web",), ("code", "web"), ("code",)]):
        for name in names:
            start = 1000 * (name == "code") + hour * 10
            write(tmp_path / name / f"20261124/{hour:02}/x.txt", list(range(start, start + 3)))
    source = data.mix(data.align({name: data.folder(tmp_path / name) for name in ("web", "code")}))
    [one] = Ranks(source, 1).each
    assert sorted(sample for rows in one for sample in ids(rows)) == [
        *range(3),
        *range(20, 23),
        *range(1000, 1003),
        *range(1020, 1023),
    ]


def test_aligned_sources_that_are_followed_wait_for_one_another(tmp_path: Path) -> None:
    """A partition that came to one of them first counts from when the other has it, too."""
    write(tmp_path / "a/20261124/00/x.txt", [1, 2])
    write(tmp_path / "b/20261124/00/x.txt", [101, 102])
    write(tmp_path / "a/20261124/01/x.txt", [3, 4])
    source = data.mix(data.align({name: data.folder(tmp_path / name, follow=True) for name in "ab"}))
    [one] = Ranks(source, 1, batch=4, lanes=1).each
    assert sorted(ids(next(one))) == [1, 2, 101, 102]
    assert not one.grow()
    write(tmp_path / "b/20261124/01/x.txt", [103, 104])
    assert sorted(ids(next(one))) == [3, 4, 103, 104]


def test_filters_and_closed_partitions(tmp_path: Path) -> None:
    for day in (23, 24, 25):
        write(tmp_path / f"dt=2026-11-{day}" / "x.txt", [day])
    write(tmp_path / "_temporary" / "x.txt", [1])
    between = data.folder(tmp_path, where=data.between("2026-11-24", "2026-11-25"))
    assert Ranks(between, 1).step() == [24]
    assert sorted(Ranks(data.folder(tmp_path, only_closed=True), 1).step()) == [23, 24]


def test_days_count_as_a_whole_where_they_are_the_partitions(tmp_path: Path) -> None:
    """Hours in the paths or not: a day is closed by the next one, and two sources have it once both have a part."""
    for name, day, hour in (("a", 24, 5), ("a", 24, 6), ("a", 25, 1), ("b", 24, 7)):
        write(tmp_path / name / f"dt=2026-11-{day}/hour={hour:02}/x.txt", [day * 100 + hour])
    write(tmp_path / "a/dt=2026-11-25/hour=02/x.txt", [2502])
    only = data.folder(tmp_path / "a", by="day", only_closed=True)
    assert sorted(Ranks(only, 1).step()) == [2405, 2406]
    both = data.align({name: data.folder(tmp_path / name, by="day") for name in "ab"})
    assert sorted(Ranks(data.mix(both), 1).step()) == [2405, 2406, 2407]


def test_several_passes_do_not_go_over_into_a_stream(tmp_path: Path) -> None:
    """In a stream each sample comes once: a position in a second pass would be past new ones, which were left out."""
    write(tmp_path / "2026-11-24/00/a.txt", list(range(24)))
    passes = Ranks(data.folder(tmp_path), 1, batch=12, epochs=2)
    steps, states = [], []
    for _ in range(4):
        steps.append(passes.step())
        states.append(passes.state)
    passes.close()
    write(tmp_path / "2026-11-24/01/a.txt", list(range(50, 62)))
    source = data.folder(tmp_path, follow=True)
    stream = Ranks(source, 1, states[1], batch=12)
    assert sorted(steps[0] + steps[1] + stream.step()) == [*range(24), *range(50, 62)]
    stream.close()
    for state in states[2:]:
        with pytest.raises(SettingsError, match=r"follow=True.* in another pass through the 24 that were"):
            Ranks(source, 1, state, batch=12)
