"""Notifications through Prefect's own means: a notification block, and an automation that sends through it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.deployments.worker.environment import client_environment, client_settings
from holdfast.errors import SettingsError, UnavailableError
from holdfast.settings import Settings

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

BLOCK = "holdfast"
AUTOMATION = "Holdfast: an incident needs a look"
STATES = ("Failed", "Crashed", "Suspended", "Needs human", "Stopped")
"""Names of a playbook run's states to notify a person of: it failed, asks for approval, gave up, or stopped the job."""


async def notify(settings: Settings, url: str) -> None:
    """Have Prefect post to ``url`` whenever a playbook's run reaches one of :data:`STATES`. Safe to repeat.

    Raises:
        SettingsError: ``url`` is no address for HTTP, or the server refused it.
        UnavailableError: Prefect's API does not answer.
    """
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"webhook {url!r}: expected an address that begins with http:// or https://")
    os.environ.update(client_environment(settings))
    import httpx  # noqa: PLC0415  (as Prefect, which reads its environment when it is imported)
    from prefect.client.orchestration import get_client  # noqa: PLC0415
    from prefect.settings import temporary_settings  # noqa: PLC0415

    try:
        with temporary_settings(client_settings(settings)):
            async with get_client() as client:
                await _automation(client, await _block(client, url))
    except httpx.HTTPStatusError as error:
        raise SettingsError(f"Prefect at {settings.prefect_api} refused the notification: {error}") from error
    except httpx.HTTPError as error:
        raise UnavailableError(
            f"Prefect API at {settings.prefect_api}: {type(error).__name__} {error}".rstrip()
        ) from error


async def _block(client: PrefectClient, url: str) -> Any:
    """Save the block that posts to ``url``; return its id."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock  # noqa: PLC0415

    block = CustomWebhookNotificationBlock(
        name=BLOCK,
        url=url,
        json_data={"text": "{{subject}}\n{{body}}"},
        # The sink is the site's own choice, and often inside its network.
        allow_private_urls=True,
    )
    return await block.save(BLOCK, overwrite=True, client=client)


async def _automation(client: PrefectClient, block: Any) -> None:
    from prefect.events.actions import SendNotification  # noqa: PLC0415
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture  # noqa: PLC0415

    wanted = AutomationCore(
        name=AUTOMATION,
        description="A playbook failed, asks for approval, gave up, or stopped the job. Written by `holdfast notify`.",
        trigger=EventTrigger(
            expect={f"prefect.flow-run.{state}" for state in STATES},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.id": "prefect.tag.incident", "prefect.resource.role": "tag"},
            posture=Posture.Reactive,
            threshold=1,
            within=0,
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="{{ flow_run.name }}: {{ flow_run.state.name }}",
                body="{{ flow_run.state.message }}\n{{ flow_run|ui_url }}",
            )
        ],
    )
    known = await client.read_automations_by_name(AUTOMATION)
    for extra in known[1:]:
        await client.delete_automation(extra.id)
    if known:
        await client.update_automation(known[0].id, wanted)
    else:
        await client.create_automation(wanted)
