"""Recordings of real torch runs: exactly the culprit is accused, and never an innocent."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from holdfast.agent.diagnostics import flight as reader
from holdfast.models.agent import FlightRecord, StackDump
from holdfast.models.job import Job, JobSpec, JobState, Parallelism
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose import flight, stacks
from holdfast.policies.diagnose.aggregate import aggregate
from tests.flight.labels import RECORDINGS, WORLD, labels

LABELS = labels()
LIMITS = Policy.load().aggregate
DUMPS = TypeAdapter(tuple[StackDump, ...])


def job(per: int) -> Job:
    spec = JobSpec(name="gpt", script="t.py", machines=WORLD // per, ranks_per_machine=per)
    return Job(
        spec=spec,
        state=JobState.RUNNING,
        epoch=1,
        code_version="v1",
        machines=tuple(f"m{slot}" for slot in range(WORLD // per)),
        submitted_at=0.0,
    )


def declared(mesh: dict[str, int]) -> Parallelism:
    """The layout as a job file has it: the last dimension of a mesh is the fastest."""
    inner = [name for name in reversed(mesh) if name != "dp" or "ep" not in mesh]
    order = [*inner, *(name for name in ("tp", "cp", "ep", "dp", "pp") if name not in inner)]
    sizes = {name: size for name, size in mesh.items() if name != "dp"}
    return Parallelism(order="-".join(order), **sizes)


def with_layout(of: Job, layout: Parallelism) -> Job:
    return of.model_copy(update={"spec": of.spec.model_copy(update={"parallelism": layout})})


def recording(name: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress((RECORDINGS / f"{name}.json.gz").read_bytes())))


def records(name: str) -> list[FlightRecord]:
    """As the agent makes them of what ranks wrote."""
    found: list[FlightRecord] = []
    for rank, written in recording(name)["asked"].items():
        if written is not None:
            found += reader.read_asked(int(rank), json.dumps(written).encode())
    return found


def waiting(name: str, of: Job) -> set[int]:
    """By their stacks."""
    dumps = DUMPS.validate_python(recording(name)["stacks"])
    return {rank for group in stacks.group_ranks(dumps, of, LIMITS) if group.waiting for rank in group.ranks}


@pytest.mark.parametrize("name", LABELS)
def test_records_alone_accuse_no_innocent(name: str) -> None:
    """Without stacks, as after the ranks ended: the culprit's machine or none."""
    label = LABELS[name]
    found = flight.analyse(records(name), job(label["per"]))
    assert set(found.suspects) <= {f"m{label['rank'] // label['per']}"}, found


@pytest.mark.parametrize("name", LABELS)
def test_exactly_the_culprit_is_named(name: str) -> None:
    """With the stacks of the same moment. Another operation, or none, is the program's fault and no machine's."""
    label = LABELS[name]
    mine = job(label["per"])
    found = flight.analyse(records(name), mine, waiting=waiting(name, mine))
    culprit = f"m{label['rank'] // label['per']}"
    match label["fault"]:
        case _ if "unnamed" in label:
            assert (found.behind, found.suspects) == ((), ()), found
        case "mismatch":
            assert (found.disagree, found.suspects) == ((label["rank"],), ()), found
        case "order" | "link":
            assert found.suspects == (), found
        case "skip":  # of two ranks that wait for one another either may have left it out
            assert (set(found.disagree) <= {label["rank"]}, found.suspects) == (True, ()), found
            assert any("look at the code" in reason for reason in found.reasons)
        case "kill":  # gloo's others end by it: it is no hang, and its exit names the machine
            assert set(found.suspects) <= {culprit}, found
        case _:
            assert (found.behind, found.suspects) == ((label["rank"],), (culprit,)), found


@pytest.mark.parametrize("name", LABELS)
def test_the_program_is_at_fault_where_it_is_and_nowhere_else(name: str) -> None:
    """That takes back what stacks say of the machine on which both ranks of a group are apart from all others."""
    label = LABELS[name]
    mine = job(label["per"])
    found = flight.analyse(records(name), mine, waiting=waiting(name, mine))
    assert bool(found.program) is (label["fault"] in ("skip", "mismatch", "order")), found


@pytest.mark.parametrize("name", LABELS)
def test_stacks_alone_accuse_exactly_the_culprits_machine(name: str) -> None:
    """Whether the job file has the layout or not. What the program did wrong is no machine's fault."""
    label = LABELS[name]
    dumps = DUMPS.validate_python(recording(name)["stacks"])
    culprit = f"m{label['rank'] // label['per']}"
    # Of a group whose ranks share a machine, each waits for the other: they are apart from all others together.
    together = label["per"] >= label["mesh"].get("tp", WORLD)
    for layout in (Parallelism(), declared(label["mesh"])):
        found = aggregate(dumps, with_layout(job(label["per"]), layout), LIMITS)
        match label["fault"]:
            case "link":
                assert found.suspects == (), found
            case "kill":
                assert (found.suspects, found.over_limit) == ((), False), found
            case "skip" | "mismatch" | "order":
                assert set(found.suspects) <= ({culprit} if together else set()), found
                assert (found.over_limit, found.sure) == (False, False), found
            case _:
                assert found.suspects == (culprit,), found


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_pipeline_whose_link_is_dead_goes_as_a_whole_or_to_a_person(share: float) -> None:
    """Either end may be at fault: both go where so many may, none where only one may.

    Each of the two machines runs a rank of another pipeline too, which only waits.
    """
    label = LABELS["pp2-dp4-link"]
    dumps = DUMPS.validate_python(recording("pp2-dp4-link")["stacks"])
    of = with_layout(job(label["per"]), declared(label["mesh"]))
    found = aggregate(dumps, of, LIMITS.model_copy(update={"max_share": share}))
    assert found.outliers == (label["peer"], label["rank"])
    if share == 0.5:
        assert (found.suspects, found.shared_group, found.sure) == (("m0", "m2"), "pp 1", False), found
    else:
        assert (found.suspects, found.over_limit) == ((), True), found
