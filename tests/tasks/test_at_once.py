"""Steps that a playbook submits or maps are run without Prefect, too: its authors' tests would fail for it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from prefect import task, unmapped
from prefect.futures import as_completed, wait

from holdfast.tasks.plain import without_prefect


@task
async def look(machine: str, deep: bool = False) -> str:
    await asyncio.sleep(0)
    return f"{machine}{' deeply' if deep else ''}"


@task
def count(names: list[str], more: int) -> int:
    if more < 0:
        raise ValueError(f"{more} is too few")
    return len(names) + more


async def test_mapped_steps_return_their_results_in_order() -> None:
    """As with Prefect: `unmapped` and plain values go to all, defaults hold, a future may be an argument."""
    with without_prefect():
        found = look.map(["m0", "m1"])
        assert found.result() == ["m0", "m1"]
        assert look.map(["m0", "m1"], deep=True).result() == ["m0 deeply", "m1 deeply"]
        assert count.map(unmapped(["m0", "m1"]), [1, 2, 3]).result() == [3, 4, 5]
        assert count.submit(found, more=0).result() == 2
        assert sorted(future.result() for future in as_completed(list(found))) == ["m0", "m1"]
        assert len(wait(found).done) == 2
        assert [state.is_completed() for state in look.map(["m0"], return_state=True)] == [True]


async def test_a_submitted_step_that_fails_says_so_where_its_result_is_asked_for() -> None:
    """And a step that needs its result is not run."""
    with without_prefect():
        futures = count.map(unmapped(["m0"]), [1, -1])
        assert futures[0].result() == 2
        assert futures[1].state.is_failed()
        with pytest.raises(ValueError, match="-1 is too few"):
            futures.result()
        assert isinstance(futures[1].result(raise_on_failure=False), ValueError)
        assert look.submit("m0", wait_for=futures).state.is_failed()


async def test_each_has_a_thread_of_its_own_as_with_prefect() -> None:
    """A use that would fail there (an object of the playbook's event loop) fails in a test, too."""

    @task
    async def where() -> tuple[int, int]:
        return threading.get_ident(), id(asyncio.get_running_loop())

    with without_prefect():
        thread, loop = where.submit().result()
    assert thread != threading.get_ident()
    assert loop != id(asyncio.get_running_loop())


async def test_map_needs_something_to_map_over() -> None:
    """Prefect's own refusal."""
    with without_prefect(), pytest.raises(Exception, match="No iterable parameters"):
        look.map(deep=True, machine=unmapped(["m0"]))
