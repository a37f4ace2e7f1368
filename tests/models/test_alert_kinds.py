"""One row per kind: everything that rules ask about a kind is declared there, once."""

from __future__ import annotations

import pickle

import pytest
from pydantic import TypeAdapter

from holdfast.models.alert import MACHINE_KINDS, Alert, AlertKind
from holdfast.models.alert_kinds import (
    of_gpus,
    of_hosts,
    of_jobs,
    of_kernel,
    of_networks,
    of_outside,
    of_ranks,
)
from holdfast.models.alert_kinds.kind import Kind
from tests.alert_kinds import default_of

_FILES = (of_gpus, of_hosts, of_jobs, of_kernel, of_networks, of_outside, of_ranks)
ROWS = [row for file in _FILES for row in vars(file).values() if isinstance(row, Kind)]


def test_every_row_is_a_kind_under_its_own_name() -> None:
    """No code could name a row that is no member of the enumeration."""
    assert {row.name for row in ROWS} == set(AlertKind)
    assert len(ROWS) == len(AlertKind)
    for kind in AlertKind:
        assert kind.name == kind.row.name.upper()


def test_no_two_kinds_have_one_precedence() -> None:
    """The one that explains a failure must not depend on the order of the alerts."""
    assert len({row.precedence for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_thresholds_are_settings_of_the_policy_file(row: Kind) -> None:
    """Each name leads to a value in the section `detect`."""
    for setting in (*row.thresholds, *filter(None, [row.every])):
        assert default_of(setting) is not None


def test_a_threshold_that_does_not_exist_is_seen() -> None:
    """The control of the test above."""
    with pytest.raises(AttributeError, match="no_such_limit"):
        default_of("gpu.no_such_limit")


def test_kinds_travel_by_name() -> None:
    """Through JSON and between processes; the row stays at home."""
    known = TypeAdapter(AlertKind)
    for kind in AlertKind:
        assert known.validate_json(known.dump_json(kind)) is kind is AlertKind(kind.row.name)
        assert pickle.loads(pickle.dumps(kind)) is kind
    with pytest.raises(ValueError, match="earthquake"):
        AlertKind("earthquake")


def test_two_versions_are_two_updates() -> None:
    """The evidence that identifies a signal is the row's own, beside that of all signals of machines."""
    first, second = (Alert(kind=AlertKind.CODE_UPDATE, at=1.0, evidence={"version": v}) for v in ("v1", "v2"))
    assert first.key != second.key
    assert AlertKind.XID.row.identifying == ("xid", "check", "device", "link")
    assert AlertKind.HANG not in MACHINE_KINDS
    assert AlertKind.HANG.row.identifying == ()
