"""Whether a job is restarted before its diagnosis."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Rung
from holdfast.models.classes import IncidentClass
from holdfast.policies.config.policy import Policy
from holdfast.policies.restore.restart_first import CLASSES, DeathFacts, why_diagnosed_first

FIRST = DeathFacts(incident_class=IncidentClass.JOB_CRASH, kept=7)
EVIDENCE: dict[str, Any] = {
    "incident_class": IncidentClass.JOB_HANG,
    "kept": 0,
    "silent": ("m1",),
    "again": 1,
    "often": True,
    "rung": Rung.ROLLBACK,
    "data": "the data of step 4 is a suspect",
    "raised": "RuntimeError",
    "cause": "gpu",
    "accused": ("m1",),
}
"""Each of these alone asks for the diagnosis first."""

words = st.sampled_from(["", "", "gpu"])
deaths = st.builds(
    DeathFacts,
    incident_class=st.sampled_from([*IncidentClass]),
    kept=st.integers(0, 2),
    silent=st.sampled_from([(), (), ("m1",)]),
    again=st.sampled_from([0, 0, 1]),
    often=st.booleans(),
    rung=st.sampled_from([Rung.RETRY, *Rung]),
    data=words,
    raised=words,
    cause=words,
    accused=st.sampled_from([(), (), ("m1", "m2")]),
)


def test_a_first_death_beside_kept_processes_is_restarted_first() -> None:
    assert Policy.load().keep_processes.restart_first
    assert not why_diagnosed_first(FIRST, wanted=True)


@pytest.mark.parametrize("field", EVIDENCE)
def test_any_evidence_alone_is_looked_into_first(field: str) -> None:
    assert why_diagnosed_first(FIRST.model_copy(update={field: EVIDENCE[field]}), wanted=True)


def test_a_site_may_want_the_diagnosis_first() -> None:
    assert "restart_first" in why_diagnosed_first(FIRST, wanted=False)


@given(deaths, st.booleans())
def test_it_is_never_restarted_first_where_anything_asks_for_evidence(
    death: DeathFacts, wanted: bool
) -> None:
    """Whatever else is known: only without any evidence, with the policy's consent, and processes to go on with."""
    asks = [
        death.incident_class not in CLASSES,
        not death.kept,
        bool(death.silent),
        bool(death.again),
        death.often,
        death.rung is not Rung.RETRY,
        *map(bool, (death.data, death.raised, death.cause, death.accused)),
    ]
    assert bool(why_diagnosed_first(death, wanted=wanted)) == (not wanted or any(asks))


def test_every_field_has_its_evidence() -> None:
    """The control: a field that is added asks for evidence here, too."""
    assert EVIDENCE.keys() == DeathFacts.model_fields.keys()


@pytest.mark.parametrize(
    "never", [IncidentClass.NAN_LOSS, IncidentClass.SILENT_CORRUPTION, IncidentClass.CODE_UPDATE]
)
def test_what_demands_evidence_is_no_class_of_it(never: IncidentClass) -> None:
    assert never not in CLASSES
