"""``notify``: hear of incidents that need a person, through Prefect's notifications."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast.cli import context
from holdfast.cli.output import AsJson, report
from holdfast.deployments import notifications


def notify(
    url: Annotated[str, typer.Argument(help="Webhook that takes a POST of JSON: {text: ...}.")],
    as_json: AsJson = False,
) -> None:
    """Post to a webhook when a playbook fails, asks for approval or gives up."""
    asyncio.run(notifications.notify(context.settings(), url))
    line = f"Prefect posts to {url} when a playbook's run is {', '.join(notifications.STATES)}."
    report(as_json, line, url=url, states=notifications.STATES)
