"""Small scenarios: one kind of fault, exact times."""

from __future__ import annotations

from typing import Any

from holdfast.models.alert import AlertKind
from holdfast.models.job import Parallelism
from holdfast.simulate.scenario import Cause, Scenario, Strategy, Symptom, SymptomSign, Variant

DEFAULT = Scenario.load()
LOST = Symptom(
    count=1,
    causes={Cause.MACHINE: 1},
    signs=(SymptomSign(kind=AlertKind.MACHINE_LOST),),
    detect_s=10,
    timeout_s=600,
    found_share=1,
)


def scenario(
    costs: dict[str, Any] | None = None, saving: dict[str, Any] | None = None, **changes: Any
) -> Scenario:
    """64 machines that are lost now and then, nothing else; every duration as given."""
    facts: dict[str, Any] = {
        "machines": 64,
        "parallelism": Parallelism(),
        "step_s": 1.0,
        "machine_rate": 2 / 64,
        "mix_rate": 0.0,
        "symptoms": {"lost": LOST},
        "switch": DEFAULT.switch.model_copy(update={"share": 0.0}),
        "costs": DEFAULT.costs.model_copy(update={"spread": 0.0, **(costs or {})}),
        "saving": DEFAULT.saving.model_copy(update=saving or {}),
        "variants": (Variant(strategy=Strategy.UNLIMITED),),
    }
    return DEFAULT.model_copy(update={**facts, **changes})
