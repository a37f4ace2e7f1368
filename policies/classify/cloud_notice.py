"""Notices of clouds that a machine will be rebooted, stopped or taken away: documented bodies in, one meaning out.

Sources: EC2, "Spot Instance interruption notices" and "View scheduled events that affect your instances" (instance
metadata); Compute Engine, "Query metadata: maintenance-event and preempted"; Azure, "Scheduled Events for Linux VMs".
A body that is not as documented is an error, never a notice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from holdfast.models.alert import MoveSource
from holdfast.models.base import Frozen


class Notice(Frozen):
    """One announcement about a machine."""

    id: str
    """The same for the same announcement."""
    source: MoveSource
    text: str
    deadline_at: float | None = None
    """When it takes effect, at the earliest (Unix seconds); None: unknown."""


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _SpotAction(_Body):
    action: Literal["terminate", "stop", "hibernate"]
    time: str


class _Ec2Event(_Body):
    code: str = Field(alias="Code")
    not_before: str = Field(alias="NotBefore")
    event_id: str = Field(alias="EventId")
    state: str = Field(alias="State")
    description: str = Field("", alias="Description")


class _AzureEvent(_Body):
    event_id: str = Field(alias="EventId")
    event_type: Literal["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"] = Field(alias="EventType")
    status: Literal["Scheduled", "Started"] = Field(alias="EventStatus")
    resources: list[str] = Field(alias="Resources")
    not_before: str = Field(alias="NotBefore")
    description: str = Field("", alias="Description")


class _AzureEvents(_Body):
    incarnation: Annotated[int, Field(alias="DocumentIncarnation")]
    events: list[dict[str, object]] = Field(alias="Events")


_EC2_EVENTS = TypeAdapter(list[dict[str, object]])
_EC2_CODES: Mapping[str, str] = {
    "instance-reboot": "the instance is rebooted",
    "system-reboot": "the host is rebooted",
    "system-maintenance": "the host's network or power is maintained",
    "instance-retirement": "the instance is retired",
    "instance-stop": "the instance is stopped",
}
_AZURE_NAME = re.compile(r"""[^\s\\/"'\[\]:|<>+=;,?*@&]{1,80}""")
"""A machine's, or an instance's of a scale set."""
Parsed = TypeVar("Parsed")


def ec2_spot(body: str) -> list[Notice]:
    """Read ``spot/instance-action``.

    Raises:
        ValueError: it is not as documented.
    """
    found = _read(lambda: _SpotAction.model_validate_json(body), body)
    at = _iso(found.time)
    return [
        Notice(
            id=f"spot:{found.action}:{found.time}",
            source=MoveSource.PREEMPTION,
            text=f"EC2 will {found.action} this Spot instance at {found.time}",
            deadline_at=at,
        )
    ]


def ec2_events(body: str) -> list[Notice]:
    """Read ``events/maintenance/scheduled``; completed and cancelled events are none.

    Raises:
        ValueError: it is not as documented.
    """
    return _of_each(_read(lambda: _EC2_EVENTS.validate_json(body), body), _ec2_event)


def _ec2_event(given: dict[str, object]) -> Notice | None:
    event = _read(lambda: _Ec2Event.model_validate(given), str(given))
    if event.state != "active":
        return None
    if event.code not in _EC2_CODES:
        raise ValueError(f"unknown event code {event.code!r}")
    text = f"EC2: {_EC2_CODES[event.code]} from {event.not_before}"
    return Notice(
        id=event.event_id,
        source=MoveSource.MAINTENANCE,
        text=f"{text} ({event.description})" if event.description else text,
        deadline_at=_ec2_time(event.not_before),
    )


def gce_maintenance(body: str) -> list[Notice]:
    """Read ``instance/maintenance-event``. A live migration stops an instance for moments, and is no notice.

    Raises:
        ValueError: it is not as documented.
    """
    match body.strip():
        case "NONE" | "MIGRATE_ON_HOST_MAINTENANCE":
            return []
        case "TERMINATE_ON_HOST_MAINTENANCE":
            text = "Compute Engine will stop this instance for maintenance of its host"
            return [Notice(id="maintenance-event", source=MoveSource.MAINTENANCE, text=text)]
    raise ValueError(f"unknown maintenance event {body.strip()[:80]!r}")


def gce_preempted(body: str) -> list[Notice]:
    """Read ``instance/preempted``.

    Raises:
        ValueError: it is not as documented.
    """
    match body.strip():
        case "FALSE":
            return []
        case "TRUE":
            text = "Compute Engine preempts this instance"
            return [Notice(id="preempted", source=MoveSource.PREEMPTION, text=text)]
    raise ValueError(f"expected TRUE or FALSE, got {body.strip()[:80]!r}")


def azure_name(body: str) -> str:
    """Read ``instance/compute/name``.

    Raises:
        ValueError: it is no name, so that the machine's own events would be taken for those of others.
    """
    name = body.strip()
    if not _AZURE_NAME.fullmatch(name):
        raise ValueError(f"expected the name of a virtual machine, got {name[:80]!r}")
    return name


def azure(body: str, name: str) -> list[Notice]:
    """Read ``scheduledevents``: events of the virtual machine ``name``, except a freeze, which lasts for seconds.

    Raises:
        ValueError: it is not as documented.
    """
    found = _read(lambda: _AzureEvents.model_validate_json(body), body)
    return _of_each(found.events, partial(_azure_event, name))


def _azure_event(name: str, given: dict[str, object]) -> Notice | None:
    resources = given.get("Resources")
    if isinstance(resources, list) and name not in resources:
        return None
    event = _read(lambda: _AzureEvent.model_validate(given), str(given))
    if event.event_type == "Freeze":
        return None
    preempts = event.event_type == "Preempt"
    text = f"Azure: {event.event_type.lower()} of this machine"
    return Notice(
        id=event.event_id,
        source=MoveSource.PREEMPTION if preempts else MoveSource.MAINTENANCE,
        text=f"{text} ({event.description})" if event.description else text,
        # Empty once it has started.
        deadline_at=_rfc(event.not_before) if event.not_before else None,
    )


def _of_each(
    events: Sequence[dict[str, object]], read: Callable[[dict[str, object]], Notice | None]
) -> list[Notice]:
    """Return the notices of all events: one that is not as documented hides none of the others.

    Raises:
        ValueError: there is no notice, and an event is not as documented.
    """
    found: list[Notice] = []
    problem: ValueError | None = None
    for event in events:
        try:
            notice = read(event)
        except ValueError as error:
            problem = problem or error
            continue
        if notice is not None:
            found.append(notice)
    if problem is not None and not found:
        raise problem
    return found


def _read(parse: Callable[[], Parsed], body: str) -> Parsed:
    try:
        return parse()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ValueError(f"{where}: {first['msg']} in {body[:120]!r}") from None


def _iso(text: str) -> float:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"time {text!r} names no zone")
    return at.timestamp()


def _ec2_time(text: str) -> float:
    return datetime.strptime(text, "%d %b %Y %H:%M:%S %Z").replace(tzinfo=UTC).timestamp()


def _rfc(text: str) -> float:
    return parsedate_to_datetime(text).timestamp()
