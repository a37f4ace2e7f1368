"""Alertmanager's webhook, version 4, to alerts of ours. Pure; labels and annotations are data, never code or keys.

https://prometheus.io/docs/alerting/latest/configuration/#webhook_config. Grafana's contact points send the same, with
fields of their own besides, as a version 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from holdfast import names
from holdfast.errors import HoldfastError, SettingsError, UnknownError
from holdfast.models.alert import Alert, AlertKind

MAX_ALERTS = 1000
MAX_TEXT = 2000
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
Text = Annotated[str, Field(max_length=64 * 1024)]


class WebhookAlert(BaseModel):
    """One alert of a payload; what we do not use is dropped."""

    model_config = ConfigDict(extra="ignore")
    status: str = ""
    labels: dict[Text, Text] = Field(default_factory=dict)
    annotations: dict[Text, Text] = Field(default_factory=dict)
    startsAt: datetime | None = None  # noqa: N815  (Alertmanager's name)
    fingerprint: Text = ""

    @field_validator("startsAt")
    @classmethod
    def _in_utc(cls, at: datetime | None) -> datetime | None:
        """Take a time without a zone as UTC: that of this host is not the sender's."""
        return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


class Webhook(BaseModel):
    """A payload."""

    model_config = ConfigDict(extra="ignore")
    version: Literal["4", "1"] = "4"
    status: str = "firing"
    alerts: list[WebhookAlert] = Field(max_length=MAX_ALERTS)
    truncatedAlerts: int = Field(0, ge=0)  # noqa: N815
    """Alerts of the group that Alertmanager left out (``max_alerts`` of its webhook), or that were too many for us."""

    @model_validator(mode="before")
    @classmethod
    def _no_more_than_we_take(cls, sent: Any) -> Any:
        """Leave out what is too many, of what does not fire first: a group that is refused is lost as a whole."""
        alerts = sent.get("alerts") if isinstance(sent, dict) else None
        left_out = sent.get("truncatedAlerts", 0) if isinstance(sent, dict) else None
        if not isinstance(alerts, list) or len(alerts) <= MAX_ALERTS or not isinstance(left_out, int):
            return sent
        firing_first = sorted(
            alerts, key=lambda each: isinstance(each, dict) and each.get("status") == "resolved"
        )
        return {
            **sent,
            "alerts": firing_first[:MAX_ALERTS],
            "truncatedAlerts": left_out + len(alerts) - MAX_ALERTS,
        }


def parse(sent: WebhookAlert, group_status: str, now: float, jobs: Collection[str] | None = None) -> Alert:
    """Convert ``sent`` to one of our alerts.

    Labels: ``kind`` (or ``alertname`` such as ``HoldfastJobHang`` or ``Xid``) names the kind; ``holdfast_job``
    or else ``job``, ``machine``, ``rank``, ``epoch`` and ``incarnation`` name where. One firing episode (same
    fingerprint, same start) is one signal, however often Alertmanager repeats it.

    Args:
        sent: as received.
        group_status: of the payload, for an alert without one of its own.
        now: Unix seconds.
        jobs: those that there are; a label ``job`` with another value beside ``machine`` names no job of ours. None:
            it always names one.

    Raises:
        SettingsError: the labels name no kind that we know, or a number or name is none.
    """
    labels = sent.labels
    starts_at = sent.startsAt.timestamp() if sent.startsAt else now
    where = f"alert {labels.get('alertname', '')[:80]!r}: label "
    machine, incarnation = labels.get("machine") or None, labels.get("incarnation") or None
    job = _job(labels, machine, jobs)
    for kind, name in ((names.JOB, job), (names.MACHINE, machine), (names.INCARNATION, incarnation)):
        if name is not None:
            names.require(kind, name, where)
    return Alert(
        kind=_kind(labels),
        job=job,
        machine=machine,
        rank=_number(labels, "rank"),
        epoch=_number(labels, "epoch"),
        incarnation=incarnation,
        at=min(starts_at, now),
        firing=(sent.status or group_status) == "firing",
        fingerprint=f"alertmanager:{sent.fingerprint[:64]}:{starts_at:.3f}" if sent.fingerprint else "",
        evidence=_evidence(sent),
    )


def _kind(labels: dict[str, str]) -> AlertKind:
    named = labels.get("kind") or labels.get("alertname", "")
    word = _WORD_START.sub("_", named).lower().removeprefix("holdfast_")
    for kind in (word, word.removeprefix("job_"), word.removeprefix("machine_")):
        if kind in AlertKind.__members__.values():
            return AlertKind(kind)
    known = ", ".join(kind.value for kind in AlertKind)
    raise SettingsError(
        f"alert {named[:80]!r}: not a kind that Holdfast knows. Give the rule a label `kind` with one of: {known}."
    )


def _job(labels: dict[str, str], machine: str | None, jobs: Collection[str] | None) -> str | None:
    # Prometheus sets `job` to the name of the scrape configuration: rules may carry ours beside it.
    if named := labels.get("holdfast_job"):
        return named
    scraped = labels.get("job") or None
    return None if machine and jobs is not None and scraped not in jobs else scraped


def _number(labels: dict[str, str], name: str) -> int | None:
    value = labels.get(name)
    if not value:
        return None
    if not value.isdecimal() or len(value) > 9:
        raise SettingsError(f"alert label {name} = {value[:40]!r}: expected a whole number")
    return int(value)


def _evidence(sent: WebhookAlert) -> dict[str, Any]:
    evidence: dict[str, Any] = {"source": "alertmanager", "labels": _short(sent.labels)}
    evidence |= {"annotations": _short(sent.annotations)} if sent.annotations else {}
    for name in ("xid", "step"):
        if sent.labels.get(name, "").isdecimal() and len(sent.labels[name]) <= 9:
            evidence[name] = int(sent.labels[name])
    for name in ("check", "device", "metric", "value", "class", "text"):
        if name in sent.labels:
            evidence[name] = sent.labels[name][:MAX_TEXT]
    if text := sent.annotations.get("summary") or sent.annotations.get("description"):
        evidence["detail"] = text[:MAX_TEXT]
    return evidence


def _short(texts: dict[str, str]) -> dict[str, str]:
    return {key[:100]: value[:MAX_TEXT] for key, value in list(texts.items())[:64]}


def refusal(error: HoldfastError, sent: WebhookAlert) -> dict[str, str | None]:
    """Return the line of the answer for an alert that was refused."""
    message, labels = str(error), sent.labels
    if (
        isinstance(error, UnknownError)
        and "job" in labels
        and not {"machine", "holdfast_job"} & labels.keys()
    ):
        message += (
            " The alert has no label `machine`, so its label `job` was taken for a training job: keep `machine` in the "
            "rule, or name the job as `holdfast_job`."
        )
    return {"incident": None, "outcome": "refused", "error": type(error).__name__, "message": message}
