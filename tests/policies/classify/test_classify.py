"""From alerts to an incident class."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.policies.classify import sure_signs
from holdfast.policies.classify.decision import JobContext, NoAction, TooEarly
from holdfast.policies.classify.incident_class import classify, sure_machines
from tests.policies.make import NOW, alert, job, rank_exit

USER_BUG: dict[str, Any] = {
    "error_type": "TypeError",
    "user_frame": "train.py:9 in step",
    "message": "bad operand",
}


def context(now: float = NOW, **changes: Any) -> JobContext:
    return JobContext(**{"job": job(), "now": now, **changes})


def classified(*alerts: Alert, **changes: Any) -> Classification:
    decision = classify(alerts, context(**changes))
    assert isinstance(decision, Classification), decision
    return decision


def xid(code: Any, machine: str = "m2", **changes: Any) -> Alert:
    return alert(
        AlertKind.XID, machine=machine, epoch=None, evidence={"xid": code, "line": "NVRM"}, **changes
    )


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        (xid(79), IncidentClass.MACHINE_FAULT),
        (xid("79"), IncidentClass.MACHINE_FAULT),
        (alert(AlertKind.GPU_LOST, machine="m2"), IncidentClass.MACHINE_FAULT),
        (alert(AlertKind.MACHINE_LOST, machine="m2", epoch=None), IncidentClass.MACHINE_FAULT),
        (
            alert(AlertKind.HOST_FAULT, machine="m2", evidence={"check": "disk_fault"}),
            IncidentClass.MACHINE_FAULT,
        ),
        (alert(AlertKind.NON_FINITE, evidence={"step": 7, "value": "nan"}), IncidentClass.NAN_LOSS),
        (alert(AlertKind.HANG, evidence={"silent_s": 6.0}), IncidentClass.JOB_HANG),
        (alert(AlertKind.CODE_UPDATE, evidence={"version": "v3"}), IncidentClass.CODE_UPDATE),
    ],
)
def test_a_sure_sign_acts_at_once(sign: Alert, expected: IncidentClass) -> None:
    """No settling for signs that need no confirmation."""
    found = classified(sign, now=NOW)
    assert found.incident_class is expected
    assert found.machine == sign.machine
    assert found.reasons


def test_xid_79_names_its_machine_and_meaning() -> None:
    """The reason can be read by people."""
    found = classified(xid(79))
    assert found.machine == "m2"
    assert found.confidence == 1.0
    assert "fallen off the bus" in found.reasons[0]


@pytest.mark.parametrize("code", [13, 31, 63, 94, 99999, "nonsense", None])
def test_a_harmless_xid_alone_is_no_incident(code: Any) -> None:
    """Applications cause Xids too."""
    decision = classify([xid(code)], context())
    assert isinstance(decision, NoAction)
    assert "alone is no incident" in decision.reason


def test_a_harmless_xid_makes_a_traceback_on_its_machine_suspicious() -> None:
    """A user error beside a GPU error is a crash to diagnose, not code to roll back."""
    found = classified(rank_exit(4, **USER_BUG), xid(31, machine="m2"))
    assert found.incident_class is IncidentClass.JOB_CRASH
    assert found.machine == "m2"
    assert any("Xid 31" in reason for reason in found.reasons)


def test_a_harmless_xid_elsewhere_does_not_excuse_user_code() -> None:
    """Only the same machine counts."""
    found = classified(rank_exit(4, **USER_BUG), xid(31, machine="m0"))
    assert found.incident_class is IncidentClass.USER_CODE_ERROR


def test_a_killed_rank_is_a_crash_at_once() -> None:
    """The signal is the root; ranks that lost it are cascading failures."""
    found = classified(rank_exit(3, signal="SIGKILL"), *(rank_exit(r, cascade=True) for r in (0, 1, 2)))
    assert (found.incident_class, found.machine, found.rank) == (IncidentClass.JOB_CRASH, "m1", 3)
    assert "SIGKILL" in found.reasons[0]
    assert any("3 ranks ended because they lost a peer" in reason for reason in found.reasons)


def test_a_killed_rank_outweighs_a_traceback() -> None:
    """User code that fails because a peer died is a cascading failure that was not recognised."""
    found = classified(rank_exit(0, at=NOW - 1, **USER_BUG), rank_exit(3, signal="SIGKILL"))
    assert found.incident_class is IncidentClass.JOB_CRASH
    assert found.rank == 3


@pytest.mark.parametrize(
    "name", ["TypeError", "IndexError", "KeyError", "builtins.ValueError", "ImportError"]
)
def test_a_programming_error_in_user_code_rolls_back(name: str) -> None:
    """The traceback ends in the job's code."""
    found = classified(rank_exit(5, **{**USER_BUG, "error_type": name}))
    assert found.incident_class is IncidentClass.USER_CODE_ERROR
    assert found.machine is None
    assert "train.py:9" in found.reasons[0]


@pytest.mark.parametrize(
    "evidence",
    [
        {"error_type": "TypeError", "user_frame": None},
        {"error_type": "RuntimeError", "user_frame": "train.py:9 in step"},
        {"error_type": None, "user_frame": "train.py:9 in step"},
        {},
    ],
)
def test_other_exceptions_are_crashes(evidence: dict[str, Any]) -> None:
    """CUDA errors are RuntimeErrors, and library frames are not the user's."""
    found = classified(rank_exit(5, **evidence))
    assert found.incident_class is IncidentClass.JOB_CRASH
    assert found.machine == "m2"


def test_user_error_on_all_ranks_after_a_change_is_more_certain() -> None:
    """Two facts that speak against hardware."""
    one = classified(rank_exit(0, **USER_BUG))
    everywhere = classified(*(rank_exit(r, **USER_BUG) for r in range(8)), code_changed_at=NOW - 5)
    assert everywhere.confidence > one.confidence
    assert any("code changed to v2" in reason for reason in everywhere.reasons)


def test_only_cascading_failures_wait_for_the_root_then_crash() -> None:
    """Half a second, counted from the first echo."""
    cascading = [rank_exit(0, cascade=True), rank_exit(1, at=NOW + 0.3, cascade=True)]
    early = classify(cascading, context(now=NOW + 0.4))
    assert isinstance(early, TooEarly)
    assert early.until_s == NOW + 0.5
    late = classified(*cascading, now=early.until_s)
    assert late.incident_class is IncidentClass.JOB_CRASH
    assert late.machine is None
    assert late.rank is None


def test_cascading_failures_of_before_the_gateway_came_wait_longer() -> None:
    """Agents report it again when they reach a gateway, each at its own time: the root may be the last."""
    echo = rank_exit(0, at=NOW - 20, cascade=True)
    early = classify([echo], context(now=NOW + 1, listening_since=NOW))
    assert isinstance(early, TooEarly)
    assert early.until_s > NOW + 2
    root = rank_exit(3, at=NOW - 20, signal="SIGKILL")
    assert classified(echo, root, now=NOW + 1, listening_since=NOW).rank == 3
    assert classified(echo, now=early.until_s, listening_since=NOW).rank is None
    assert isinstance(classify([rank_exit(0, at=NOW, cascade=True)], context(now=NOW + 0.4)), TooEarly)
    assert classified(rank_exit(0, at=NOW, cascade=True), now=NOW + 0.6, listening_since=NOW).rank is None


def test_cascading_failures_and_an_unreachable_machine_are_its_fault_at_once() -> None:
    """No settling: two independent facts agree."""
    found = classified(rank_exit(0, cascade=True), unreachable=frozenset({"m3", "foreign"}))
    assert (found.incident_class, found.machine) == (IncidentClass.MACHINE_FAULT, "m3")


def test_an_unreachable_machine_without_cascading_failures_is_left_to_its_own_detector() -> None:
    """A slow agent is no reason by itself."""
    assert isinstance(classify([xid(31)], context(unreachable=frozenset({"m3"}))), NoAction)


def test_a_root_outweighs_an_unreachable_machine() -> None:
    """A process that reports why it died explains more than a silent agent."""
    found = classified(rank_exit(0, signal="SIGSEGV"), unreachable=frozenset({"m3"}))
    assert found.incident_class is IncidentClass.JOB_CRASH


def test_a_lost_machine_outweighs_everything_it_caused() -> None:
    """NaN, hang, cascading failures, update: the machine explains them."""
    found = classified(
        alert(AlertKind.NON_FINITE, rank=0, machine="m0"),
        alert(AlertKind.HANG),
        rank_exit(0, cascade=True),
        alert(AlertKind.CODE_UPDATE, evidence={"version": "v3"}),
        alert(AlertKind.MACHINE_LOST, machine="m1"),
    )
    assert (found.incident_class, found.machine) == (IncidentClass.MACHINE_FAULT, "m1")


def test_non_finite_outweighs_the_assertion_on_it_and_names_no_machine() -> None:
    """The loss is reduced over all ranks: the first reporter is not the culprit."""
    nan = alert(
        AlertKind.NON_FINITE, rank=2, machine="m1", evidence={"step": 9, "metric": "loss", "value": "nan"}
    )
    found = classified(rank_exit(2, **{**USER_BUG, "error_type": "AssertionError"}), nan)
    assert found.incident_class is IncidentClass.NAN_LOSS
    assert found.machine is None
    assert "step 9" in found.reasons[0]


@pytest.mark.parametrize(("plain", "text"), [(True, "no rank wrote to its log for"), (False, "no step for")])
def test_a_hang_says_what_did_not_come(plain: bool, text: str) -> None:
    """A job that reports no steps has none to miss."""
    found = classified(alert(AlertKind.HANG, evidence={"silent_s": 301.0, "plain": plain}))
    assert found.reasons[0] == f"{text} 301.0 s: no progress"


def test_a_dead_rank_outweighs_a_hang_and_a_hang_outweighs_cascading_failures() -> None:
    """A hang vote while a rank is dead is a consequence."""
    hang = alert(
        AlertKind.HANG, machine="m3", rank=6, evidence={"signals": ["silent", "stuck"], "silent_s": 6}
    )
    assert classified(hang, rank_exit(0, signal="SIGKILL")).incident_class is IncidentClass.JOB_CRASH
    found = classified(hang, rank_exit(0, cascade=True))
    assert (found.incident_class, found.machine, found.rank) == (IncidentClass.JOB_HANG, "m3", 6)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ({"signal": "SIGKILL", "cause": "service"}, IncidentClass.JOB_CRASH),
        ({"signal": "SIGSEGV", "cause": "numeric"}, IncidentClass.JOB_CRASH),
        ({"signal": "SIGABRT", "cause": "service"}, IncidentClass.EXTERNAL_SERVICE),
        ({"signal": "SIGKILL", "cause": "host_memory"}, IncidentClass.HOST_PRESSURE),
        ({"signal": "SIGKILL", "cause": "service", "failed_at": NOW - 1}, IncidentClass.EXTERNAL_SERVICE),
        ({"cause": "service"}, IncidentClass.EXTERNAL_SERVICE),
    ],
)
def test_no_service_kills_a_rank(evidence: dict[str, Any], expected: IncidentClass) -> None:
    """Its log may have lines about one. One that reported its failure first was killed because it did not end."""
    assert classified(rank_exit(3, **evidence)).incident_class is expected


@pytest.mark.parametrize("where", ["m2", "m3"])
def test_pressure_explains_a_hang_but_not_a_stopped_process(where: str) -> None:
    """A machine that is short of processors is slow; it puts no process into state T."""
    pressure = alert(AlertKind.CPU_PRESSURE, machine=where, epoch=None)
    idle = alert(AlertKind.HANG, evidence={"signals": ["silent", "idle"], "silent_s": 6, "stopped": []})
    assert classified(idle, pressure).incident_class is IncidentClass.HOST_PRESSURE
    halted = alert(
        AlertKind.HANG, machine="m3", rank=6, evidence={"signals": ["silent", "stuck"], "stopped": [6]}
    )
    found = classified(halted, pressure)
    assert (found.incident_class, found.machine, found.rank) == (IncidentClass.JOB_HANG, "m3", 6)


def test_a_busy_processor_kills_no_rank() -> None:
    """SIGKILL has another cause; an exception may be one of time."""
    pressure = alert(AlertKind.CPU_PRESSURE, machine="m1", epoch=None)
    assert classified(rank_exit(2, signal="SIGKILL"), pressure).incident_class is IncidentClass.JOB_CRASH
    raised = rank_exit(2, error_type="RuntimeError", message="DataLoader timed out")
    assert classified(raised, pressure).incident_class is IncidentClass.HOST_PRESSURE


def test_a_human_word_comes_first() -> None:
    """A person looked."""
    asked = alert(AlertKind.MANUAL, evidence={"class": "nan_loss", "by": "ann", "text": "loss looks wrong"})
    found = classified(alert(AlertKind.MACHINE_LOST, machine="m1"), asked)
    assert found.incident_class is IncidentClass.NAN_LOSS
    assert found.reasons[0] == "ann asked for nan_loss: loss looks wrong"


def test_a_manual_machine_fault_without_machine_is_looked_for() -> None:
    """There is nothing to evict yet."""
    found = classified(alert(AlertKind.MANUAL, evidence={"class": "machine_fault"}))
    assert found.incident_class is IncidentClass.JOB_CRASH
    named = classified(alert(AlertKind.MANUAL, machine="m2", evidence={"class": "machine_fault"}))
    assert (named.incident_class, named.machine) == (IncidentClass.MACHINE_FAULT, "m2")


@pytest.mark.parametrize(
    ("ignored", "why"),
    [
        (rank_exit(0, signal="SIGKILL").model_copy(update={"epoch": 2}), "is of epoch 2"),
        (xid(79, machine="m9"), "does not use"),
    ],
)
def test_what_the_job_left_behind_is_dropped_with_its_reason(ignored: Alert, why: str) -> None:
    """Its epoch or machines changed since the alert was admitted."""
    decision = classify([ignored], context())
    assert isinstance(decision, NoAction)
    assert why in decision.reason


def test_no_alerts_is_no_action() -> None:
    """The empty case."""
    assert classify([], context()) == NoAction(reason="no alerts")


def test_dropped_alerts_are_mentioned_beside_the_decision() -> None:
    """The incident can be read afterwards."""
    found = classified(xid(79), alert(AlertKind.HANG, epoch=2))
    assert "ignored: hang is of epoch 2; the job is in 3" in found.reasons


def test_a_network_check_needs_to_fail_twice_within_its_window() -> None:
    """NICs and switches often come back alone."""

    def nic(at: float) -> Alert:
        return alert(AlertKind.HOST_FAULT, machine="m1", at=at, evidence={"check": "nic_down", "value": 1})

    assert isinstance(classify([nic(NOW)], context()), NoAction)
    assert isinstance(classify([nic(NOW), nic(NOW)], context()), NoAction)
    assert isinstance(classify([nic(NOW - 400), nic(NOW)], context()), NoAction)
    found = classified(nic(NOW - 200), nic(NOW))
    assert (found.incident_class, found.machine) == (IncidentClass.NETWORK_FAULT, "m1")


def test_two_ports_that_are_hit_at_one_time_are_one_fault() -> None:
    """A card's two functions report their firmware at once; the same again half a minute later is the second time."""

    def nic(device: str, at: float) -> Alert:
        evidence = {"check": "nic_firmware", "device": device}
        key = f"nic:{device}:{at}"
        return alert(AlertKind.HOST_FAULT, machine="m1", at=at, evidence=evidence, fingerprint=key)

    first = [nic("0000:5e:00.0", NOW - 30), nic("0000:5e:00.1", NOW - 30)]
    assert isinstance(classify(first, context()), NoAction)
    found = classified(*first, nic("0000:5e:00.0", NOW))
    assert (found.incident_class, found.machine) == (IncidentClass.NETWORK_FAULT, "m1")


def test_a_queue_that_its_driver_resets_explains_and_never_acts_alone() -> None:
    """However often it is reported."""

    def hung(at: float) -> Alert:
        evidence = {"check": "nic_tx_hang", "recovers": True}
        return alert(AlertKind.HOST_FAULT, machine="m1", at=at, evidence=evidence)

    assert isinstance(classify([hung(NOW - 60), hung(NOW - 30), hung(NOW)], context()), NoAction)
    found = classified(hung(NOW), alert(AlertKind.HANG))
    assert (found.incident_class, found.machine) == (IncidentClass.NETWORK_FAULT, "m1")


def test_a_block_that_another_copy_may_repair_explains_and_never_acts_alone() -> None:
    """A file system that is broken opens an incident by itself."""

    def wrong(**more: object) -> Alert:
        evidence = {"device": "sda2", "filesystem": "btrfs", **more}
        return alert(AlertKind.FILESYSTEM_ERROR, machine="m1", at=NOW, evidence=evidence)

    assert isinstance(classify([wrong(recovers=True)], context()), NoAction)
    assert classified(wrong()).incident_class is IncidentClass.STORAGE_FAULT
    assert (
        classified(wrong(recovers=True), alert(AlertKind.HANG)).incident_class is IncidentClass.STORAGE_FAULT
    )


@pytest.mark.parametrize("label", ["replica", "prometheus_replica"])
def test_one_network_fault_that_a_pair_of_monitors_reports_is_no_second_one(label: str) -> None:
    """Two Prometheus servers whose label reaches Alertmanager; each one's second report counts."""

    def nic(at: float, server: str, device: str = "ib0") -> Alert:
        labels = {"kind": "nic_down", "machine": "m1", "device": device, label: server}
        key = f"alertmanager:{server}{device}:{at:.3f}"
        evidence = {"source": "alertmanager", "labels": labels, "device": device}
        return alert(AlertKind.NIC_DOWN, machine="m1", at=at, fingerprint=key, evidence=evidence)

    pair = [nic(NOW - 15, "a"), nic(NOW, "b")]
    assert isinstance(classify(pair, context()), NoAction)
    found = classified(*pair, nic(NOW, "a"))
    assert (found.incident_class, found.machine) == (IncidentClass.NETWORK_FAULT, "m1")
    assert isinstance(classify([nic(NOW - 15, "a"), nic(NOW, "b", "ib1")], context()), Classification)


def test_an_ordinary_host_fault_is_no_incident() -> None:
    """Full memory or a hot processor is evidence, not proof."""
    hot = alert(
        AlertKind.HOST_FAULT, machine="m1", evidence={"check": "temperature", "value": 91, "limit": 90}
    )
    decision = classify([hot], context())
    assert isinstance(decision, NoAction)
    assert "temperature = 91 (limit 90)" in decision.reason


def test_what_has_no_limit_is_described_without_one() -> None:
    """A jump has the metric, and its usual value."""
    evidence = {"step": 5, "metric": "loss", "value": 13.416971206665039, "median": 1.0, "factor": 3.0}
    jumped = alert(AlertKind.METRIC_JUMP, machine="m1", evidence=evidence)
    assert sure_signs.describe(jumped) == "metric jump of loss = 13.417 (median 1)"


def test_many_machines_at_once_name_none() -> None:
    """One bad sensor or switch must not evict half of the cluster."""
    storm = [xid(79, machine=f"m{i}") for i in range(3)]
    found = classified(*storm)
    assert found.incident_class is IncidentClass.MACHINE_FAULT
    assert found.machine is None
    assert found.confidence < 0.5
    assert "limit of 1" in found.reasons[0]
    assert sure_machines(storm, context()) == ("m0", "m1", "m2")


def test_few_machines_at_once_name_the_first() -> None:
    """Within the limit the playbook may take all of them."""
    big = job(machines=16)
    both = [xid(79, machine="m9", at=NOW), xid(95, machine="m3", at=NOW - 1)]
    found = classified(*both, job=big)
    assert found.machine == "m3"
    assert sure_machines(both, context(job=big)) == ("m3", "m9")
    assert sure_machines([], context()) == ()


POOL = [
    rank_exit(0, cascade=True),
    rank_exit(1, at=NOW + 0.1, cascade=True),
    rank_exit(3, at=NOW + 0.2, **USER_BUG),
    rank_exit(5, at=NOW + 0.2, signal="SIGKILL"),
    xid(31),
    xid(79, at=NOW + 0.1),
    xid(48, machine="m1"),
    alert(AlertKind.HANG),
    alert(AlertKind.NON_FINITE, rank=1, machine="m0", evidence={"step": 3}),
    alert(AlertKind.NON_FINITE, rank=6, machine="m3", evidence={"step": 2}),
    alert(AlertKind.MACHINE_LOST, machine="m3", epoch=2),
    alert(AlertKind.CODE_UPDATE, evidence={"version": "v3"}),
]


@given(
    st.lists(st.sampled_from(POOL), max_size=8, unique_by=id).flatmap(
        lambda a: st.tuples(st.just(a), st.permutations(a))
    )
)
def test_arrival_order_and_duplicates_do_not_matter(pair: tuple[list[Alert], list[Alert]]) -> None:
    """The same facts give the same decision."""
    first, second = pair
    assert classify(first, context()) == classify(second, context())
    doubled = classify([*second, *first], context())
    assert type(doubled) is type(classify(first, context()))
    if isinstance(doubled, Classification):
        single = classify(first, context())
        assert isinstance(single, Classification)
        assert (doubled.incident_class, doubled.machine) == (single.incident_class, single.machine)


def test_every_order_of_a_crash_gives_one_answer() -> None:
    """All 24 orders of a root and its cascading failures."""
    alerts = [rank_exit(3, signal="SIGKILL"), *(rank_exit(r, cascade=True) for r in (0, 1, 2))]
    assert len({repr(classify(order, context())) for order in permutations(alerts)}) == 1


@pytest.mark.parametrize(
    ("evidence", "sure"),
    [
        ({"test": "Persistence Mode"}, False),
        ({"test": "software", "detail": "the environment is odd"}, False),
        ({"test": "Memory", "detail": "CUDA-capable device(s) is/are busy or unavailable"}, False),
        ({"test": "nvbandwidth", "detail": "This may affect the results of the nvbandwidth test."}, False),
        ({"test": "Page Retirement/Row Remap"}, True),
        ({"test": "PCIe"}, True),
        ({}, True),
    ],
)
def test_dcgm_tests_of_settings_accuse_no_machine(evidence: dict[str, Any], sure: bool) -> None:
    """As monitors outside report them: how a machine is set up is no fault of its GPUs."""
    diagnosed = alert(AlertKind.DCGM_DIAG, machine="m1", epoch=None, evidence=evidence)
    found = classify([diagnosed], JobContext(job=job(), now=NOW))
    assert isinstance(found, Classification) is sure
