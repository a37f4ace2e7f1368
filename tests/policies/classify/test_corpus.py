"""A generated corpus of mixed, doubled and shuffled alerts: the decision depends on what was seen, not on its order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.models.alert import MACHINE_KINDS, Alert, AlertKind, Classification, IncidentClass
from holdfast.policies.classify import sure_signs
from holdfast.policies.classify.decision import Decision, JobContext, NoAction
from holdfast.policies.classify.incident_class import classify
from holdfast.policies.config.policy import Policy
from tests.policies.make import NOW, job

POLICY = Policy.load()
JOB = job(machines=8)
OF_RANKS = frozenset(AlertKind) - MACHINE_KINDS
EVIDENCE = st.fixed_dictionaries(
    {},
    optional={
        "xid": st.sampled_from([13, 31, 48, 79, 99999, "79", "junk"]),
        "signal": st.sampled_from(["SIGKILL", "SIGSEGV", None]),
        "error_type": st.sampled_from(["TypeError", "RuntimeError", "OSError", None]),
        "user_frame": st.sampled_from(["train.py:9 in step", None]),
        "cascade": st.booleans(),
        "cause": st.sampled_from(
            ["gpu", "network", "host_memory", "disk_space", "remote_storage", "x", None]
        ),
        "check": st.sampled_from(["disk_fault", "nic_down", "temperature"]),
        "level": st.sampled_from(["fail", "warn"]),
        "fatal": st.booleans(),
        "what": st.sampled_from(["panic", "oops"]),
        "step": st.integers(0, 50),
        "machines": st.just(["m0", "m1"]),
        "switch": st.sampled_from(["leaf-1", ""]),
        "class": st.sampled_from([*(one.value for one in IncidentClass), None]),
        "value": st.floats(allow_nan=True),
        "text": st.text(max_size=40),
    },
)


@st.composite
def alerts(draw: st.DrawFn) -> Alert:
    """Any kind, from any machine (or none, or one that left the job), of any epoch, at any time."""
    kind = draw(st.sampled_from(AlertKind))
    rank = draw(st.none() | st.integers(0, 15)) if kind in OF_RANKS else None
    return Alert(
        kind=kind,
        job="gpt",
        machine=JOB.machine_of(rank)
        if rank is not None
        else draw(st.sampled_from([*JOB.machines, "m99", None])),
        rank=rank,
        epoch=draw(st.sampled_from([3, 3, 3, 2, None])),
        at=NOW - draw(st.sampled_from([0.0, 0.1, 0.3, 10.0, 200.0, 5000.0])),
        evidence=draw(EVIDENCE),
    )


def decide(corpus: list[Alert]) -> Decision:
    return classify(corpus, JobContext(job=JOB, now=NOW), POLICY)


@settings(max_examples=400)
@given(
    st.lists(alerts(), max_size=10).flatmap(lambda one: st.tuples(st.just(one), st.permutations(one))),
    st.data(),
)
def test_same_decision_whatever_the_order_and_however_often(
    pair: tuple[list[Alert], list[Alert]], data: st.DataObject
) -> None:
    """Class, machine, rank, root and suspects alike; repeats by several monitors change nothing."""
    first, shuffled = pair
    assert decide(first) == decide(shuffled)
    if first:
        repeats = data.draw(st.lists(st.sampled_from(first), max_size=5))
        again = decide([*shuffled, *repeats])
        once = decide(first)
        assert type(again) is type(once)
        if isinstance(again, Classification) and isinstance(once, Classification):
            fields = ("incident_class", "machine", "rank", "confidence", "root", "suspects")
            assert all(getattr(again, name) == getattr(once, name) for name in fields)


@settings(max_examples=300)
@given(st.lists(alerts(), max_size=8))
def test_what_may_not_act_never_does(corpus: list[Alert]) -> None:
    """Alerts of an earlier epoch and of machines that left: the decision is that of the others alone."""
    stale = [alert.model_copy(update={"epoch": 1}) for alert in corpus]
    left = [alert.model_copy(update={"machine": "m98"}) for alert in corpus]
    for ignored in (stale, left):
        assert isinstance(decide(ignored), NoAction)
        with_them, without = decide([*corpus, *ignored]), decide(corpus)
        assert type(with_them) is type(without)
        if isinstance(with_them, Classification) and isinstance(without, Classification):
            assert with_them.incident_class is without.incident_class
            assert (with_them.machine, with_them.suspects) == (without.machine, without.suspects)


@settings(max_examples=300)
@given(st.lists(alerts(), max_size=8))
def test_every_suspect_was_accused(corpus: list[Alert]) -> None:
    """The machine and all suspects are of the job and appear in the alerts; every decision has its reasons."""
    found = decide(corpus)
    if not isinstance(found, Classification):
        return
    seen = {alert.machine for alert in corpus}
    assert found.reasons
    assert 0 <= found.confidence <= 1
    assert {found.machine, *found.suspects} - {None} <= seen & set(JOB.machines)
    if found.root:
        assert found.root in {alert.key for alert in corpus}


@settings(max_examples=200)
@given(st.lists(alerts(), min_size=1, max_size=8))
def test_a_machine_fault_needs_a_sure_sign(corpus: list[Alert]) -> None:
    """No combination of weak signs evicts without diagnosis; only a person may."""
    found = decide(corpus)
    if (
        isinstance(found, Classification)
        and found.incident_class is IncidentClass.MACHINE_FAULT
        and found.machine
    ):
        of_people = [one for one in corpus if one.kind is AlertKind.MANUAL]
        beside_exit = [one for one in corpus if one.kind is AlertKind.KERNEL_PANIC]
        assert of_people or beside_exit or found.machine in sure_signs.find(corpus, POLICY.classify)


def test_alerts_of_one_moment_are_ordered_by_their_content() -> None:
    """Two reports of one signal at the very same time: the same one counts."""
    first = Alert(kind=AlertKind.GPU_LOST, job="gpt", machine="m4", epoch=3, at=NOW - 0.1)
    both = [first, first.model_copy(update={"evidence": {"detail": "another"}})]
    assert decide(both) == decide(both[::-1])
