"""``pool``: the standby pool, its target and the reason for it."""

from __future__ import annotations

from holdfast.cli import context
from holdfast.cli.output import AsJson, print_json, say


def pool(as_json: AsJson = False) -> None:
    """Show the standby pool: what it has, what it should have, and why."""
    with context.gateway() as gateway:
        facts = gateway.pool()
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        text = ", ".join(str(item) for item in value) if isinstance(value, list) else value
        say(f"{key:12} {text}")
