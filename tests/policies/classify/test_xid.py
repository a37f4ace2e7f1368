"""The vendor's catalogue of Xids decides: harmless ones accuse no GPU, NVLink's need their sub-codes."""

from __future__ import annotations

import pytest

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.policies.classify import xid
from holdfast.policies.classify.decision import JobContext, NoAction
from holdfast.policies.classify.incident_class import classify
from holdfast.policies.classify.meaning import harmless
from tests.policies.make import NOW, alert, job, rank_exit

JOB = job(machines=4)
LINK = "NVRM: Xid (PCI:0008:01:00): {}, {} XC0 i0 Link 08 ({} {} 0x00000000 0x00000000 0x00000000 0x00000000)"


def of(code: int, machine: str = "m0", line: str = "") -> Alert:
    return alert(AlertKind.XID, machine=machine, epoch=None, evidence={"xid": code, "line": line})


def key_errors(*ranks: int) -> list[Alert]:
    evidence = {"error_type": "KeyError", "user_frame": "train.py:41 in step", "message": "'input_ids'"}
    return [rank_exit(rank, **evidence) for rank in ranks]


def decided(*alerts: Alert) -> Classification:
    found = classify(alerts, JobContext(job=JOB, now=NOW))
    assert isinstance(found, Classification)
    return found


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (43, ""),
        (45, ""),
        (63, ""),
        (92, ""),
        (154, "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        (149, LINK.format(149, "NETIR_BER_EVENT Nonfatal", "0x00082226", "0x00000001")),
    ],
)
def test_a_harmless_xid_does_not_overrule_a_users_bug(code: int, line: str) -> None:
    """KeyError on all ranks of all machines: code, whatever a GPU cleaned up behind it; no machine is a suspect."""
    found = decided(*key_errors(*range(8)), of(code, "m0", line), of(code, "m2", line))
    assert found.incident_class is IncidentClass.USER_CODE_ERROR
    assert (found.machine, found.suspects) == (None, ())


def test_a_harmless_xid_does_not_hide_what_explains_the_exit() -> None:
    """A full disk beside a row that was remapped: the disk."""
    full = alert(AlertKind.DISK_FULL, machine="m1", epoch=None, evidence={"device": "/data"})
    found = decided(rank_exit(2, error_type="OSError"), of(63, "m1"), full)
    assert found.incident_class is IncidentClass.STORAGE_FAULT


def test_a_gpu_error_beside_the_only_exception_still_counts() -> None:
    """Xid 31 on the machine of the rank that raised: its data may be the GPU's doing."""
    assert decided(*key_errors(0), of(31)).incident_class is IncidentClass.JOB_CRASH


def test_the_same_exception_where_no_gpu_failed_is_code() -> None:
    """Xid 31 on one machine, the same KeyError in the same frame on the others."""
    assert decided(*key_errors(*range(8)), of(31)).incident_class is IncidentClass.USER_CODE_ERROR


def test_a_harmless_xid_alone_is_no_incident() -> None:
    """Nothing to do."""
    assert isinstance(classify([of(63)], JobContext(job=JOB, now=NOW)), NoAction)


@pytest.mark.parametrize(
    ("code", "words", "info", "status", "action"),
    [  # as drivers before and since R575 print them
        (149, "NETIR_LINK_EVT Fatal", "0x004505c6", "0x00000000", "reset_gpu"),
        (149, "NETIR_LINK_EVT  Fatal  ", "0x021425c6", "0x00000000", "reset_gpu"),
        (149, "NETIR_LINK_EVT Fatal", "0x026001c6", "0x00000000", "ignore"),
        (149, "NETIR Fatal", "0x000fe406", "0x00000000", "reset_gpu"),
        (149, "NETIR_BER_EVENT Nonfatal", "0x00086226", "0x00000001", "ignore"),
        (145, "RLW_SRC_TRACK Nonfatal", "0x040988e2", "0x00000008", "restart_app"),
        (145, "pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal", "0x0409a0c2", "0x00000008", "ignore"),
        (145, "RLW_RXPIPE Nonfatal", "0x00000086", "0x00000001", "reset_gpu"),
        (145, "RLW_RXPIPE Nonfatal", "0x00000006", "0x00000001", "ignore"),
        (145, "RLW_REMAP Fatal", "0x00000004", "0x00000040", "reset_gpu"),
        (144, "SAW_MVB Fatal", "0x00000001", "0x00000002", "reset_gpu"),
        (144, "SAW_MVB Nonfatal", "0x00000001", "0x00000008", "ignore"),
        (146, "TLW_RX/TLW_RX_PIPE0 Fatal", "0x0000000a", "0x00000004", "reset_gpu"),
        (150, "MSE_WATCHDOG Fatal", "0x00000000", "0x00000000", "reset_gpu"),
        (144, "SAW_EGR Nonfatal", "0x00000004", "0x00000001", "restart_app"),  # not in the catalogue
        (145, "RLW_REMAP Fatal", "0x00000004", "0x00400000", "restart_app"),  # not in the catalogue
    ],
)
def test_nvlinks_sub_codes_decide(code: int, words: str, info: str, status: str, action: str) -> None:
    """Unit, error status and sub-code, through the classification's door."""
    line = LINK.format(code, words, info, status)
    entry = xid.resolved(code, line)
    assert (entry.action, entry.lost) == (action, action == "reset_gpu")
    assert harmless(of(code, line=line)) is (action == "ignore")


@pytest.mark.parametrize("code", range(144, 151))
def test_nvlinks_codes_alone_are_not_known(code: int) -> None:
    """As NVML reports them: no machine is evicted, and they are not harmless either."""
    entry = xid.resolved(code)
    assert not entry.lost
    assert not harmless(of(code))


@pytest.mark.parametrize(
    ("code", "action"), [(151, "restart_machine"), (155, "reset_gpu"), (156, "reset_gpu")]
)
def test_as_strict_as_the_vendor(code: int, action: str) -> None:
    """The catalogue asks for a restart or a reset: the machine cannot go on without it."""
    entry = xid.lookup(code)
    assert (entry.action, entry.lost) == (action, True)


@pytest.mark.parametrize("code", [60, 68, 75, 82, 86, 99, 105, 126, 135, 139, 159])
def test_codes_of_video_and_copy_engines_restart_the_application(code: int) -> None:
    """The vendor's action, not its support."""
    entry = xid.lookup(code)
    assert (entry.known, entry.action, entry.lost) == (True, "restart_app", False)


@pytest.mark.parametrize(
    ("registers", "lost"),
    [
        ("0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", False),
        ("0x40000002, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", False),
        ("0x100010, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", True),
        ("0x100000, 0x0, 0x2, 0x0, 0x0, 0x0, 0x0", True),
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", True),
        ("", True),
    ],
)
def test_what_another_link_led_to_evicts_no_machine(registers: str, lost: bool) -> None:
    """Bits 1 and 20 of the first register are a consequence, by the vendor's workflow for Xid 74; others are not."""
    line = f"NVRM: Xid (PCI:0000:d8:00): 74, pid='<unknown>', NVLink: fatal error detected on link 14({registers})"
    assert xid.resolved(74, line).lost is lost
    assert not harmless(of(74, line=line))
