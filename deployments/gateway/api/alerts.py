"""Routes for alerts from outside: people, tools, Prometheus through Alertmanager."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from fastapi import APIRouter, Request

from holdfast.deployments.gateway.api.audit import UNNAMED, audited, describe, who
from holdfast.deployments.gateway.api.sanitize import tidy
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.intake import alertmanager
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.site import log
from holdfast.errors import HoldfastError, SettingsError, UnavailableError, UnknownError
from holdfast.models.alert import Alert

_UNKNOWN_KIND = "unknown"
"""Label of the metric for alerts that could not be read: what a sender wrote is no label."""
_REMEMBERED = 256
"""Refusals that are not logged again."""


def routes(gateway: Gateway) -> APIRouter:
    """Return the routes, for this gateway."""
    router = APIRouter(prefix="/v1/alerts")
    logged: OrderedDict[str, None] = OrderedDict()

    @router.post("")
    async def alert(request: Request, body: Alert) -> Outcome:
        alert = tidy(body)
        asker = who(request, str(alert.evidence.get("by") or ""))
        if asker.by == UNNAMED:  # tools give no name
            return await gateway.correlator.accept(alert)
        asked = asker.asks(
            "alert", alert.job or alert.machine or "", f"{alert.kind.value} {alert.fingerprint}"
        )
        return await audited(gateway.site, asked, lambda: gateway.correlator.accept(alert), describe)

    @router.post("/alertmanager")
    async def webhook(body: alertmanager.Webhook) -> dict[str, Any]:
        # One answer per alert, and 200 for all: Alertmanager would repeat the others with the refused one.
        # Only while the ledger is unavailable is it asked to retry (503).
        results = [await _one(gateway, sent, body.status, logged) for sent in body.alerts]
        if body.truncatedAlerts:
            gateway.site.metrics.truncated.inc(body.truncatedAlerts)
            log.warning(
                "%d alerts of a group were left out: group by more labels, or raise max_alerts of Alertmanager's "
                "webhook (no more than %d are taken at once)",
                body.truncatedAlerts,
                alertmanager.MAX_ALERTS,
            )
        return {"results": results, "truncated": body.truncatedAlerts}

    return router


async def _one(
    gateway: Gateway, sent: alertmanager.WebhookAlert, group_status: str, logged: OrderedDict[str, None]
) -> dict[str, Any]:
    try:
        jobs = gateway.site.fleet.jobs
        alert = tidy(alertmanager.parse(sent, group_status, gateway.site.clock.now(), jobs))
    except SettingsError as error:
        gateway.site.metrics.alerts.labels(_UNKNOWN_KIND, What.REFUSED).inc()
        return _refused(sent, error, logged)
    try:
        outcome = await gateway.correlator.accept(alert)
    except UnavailableError:
        raise
    except HoldfastError as error:
        return _refused(sent, error, logged)
    return {"fingerprint": sent.fingerprint[:64], **outcome.model_dump(mode="json", exclude={"error"})}


def _refused(
    sent: alertmanager.WebhookAlert, error: HoldfastError, logged: OrderedDict[str, None]
) -> dict[str, Any]:
    """Return the answer; one that shows a wrong rule is logged, as Alertmanager drops the answer. Once: it repeats."""
    answer = alertmanager.refusal(error, sent)
    message = f"Alertmanager's {sent.labels.get('alertname', '')[:80]!r} refused: {answer['message']}"
    if isinstance(error, SettingsError | UnknownError) and message not in logged:
        logged[message] = None
        if len(logged) > _REMEMBERED:
            logged.popitem(last=False)
        log.warning("%s", message)
    return {"fingerprint": sent.fingerprint[:64], **answer}
