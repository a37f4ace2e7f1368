"""Agents and gateways one release apart understand one another.

``messages/`` has the traffic of a site of the release of that date, faults included: heartbeats, reports and answers
as they went over the wire, commands as its models write them. Every later release must read them; and this one must
read messages that have more in them than it knows.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast.deployments.gateway.api.agents import Taken
from holdfast.models import agent, tolerant
from holdfast.models.machine import Machine

MESSAGES = [
    json.loads(line)
    for file in sorted(Path(__file__).with_name("messages").glob("*.jsonl"))
    for line in file.read_text().splitlines()
]
_NUMBERED = [pytest.param(each, id=f"{each['model']}-{n}") for n, each in enumerate(MESSAGES)]


def model_of(name: str) -> type[BaseModel]:
    """The model by its name."""
    known: dict[str, Any] = {"Machine": Machine, "Taken": Taken}
    found: type[BaseModel] = known.get(name) or getattr(agent, name)
    return found


@pytest.mark.parametrize("message", _NUMBERED)
def test_what_an_older_release_says_is_read(message: dict[str, Any]) -> None:
    """Nothing that was added since is asked of it."""
    found = tolerant.read(model_of(message["model"]), json.dumps(message["body"]).encode())
    read = found.model_dump(mode="json")
    assert as_sent(read, message["body"]) == message["body"]


def as_sent(read: Any, sent: Any) -> Any:
    """The value read, without what this release has beside it: in every object, at any depth."""
    if isinstance(sent, dict) and isinstance(read, dict):
        return {key: as_sent(read[key], sent[key]) for key in sent if key in read}
    if isinstance(sent, list) and isinstance(read, list) and len(read) == len(sent):
        return [as_sent(*pair) for pair in zip(read, sent, strict=True)]
    return read


@pytest.mark.parametrize("message", _NUMBERED)
def test_what_a_newer_release_adds_is_ignored(message: dict[str, Any]) -> None:
    """In every object of the message, at any depth."""
    model, body = model_of(message["model"]), message["body"]
    plain = tolerant.read(model, json.dumps(body).encode())
    places = list(objects(body))
    assert places
    for way in places:
        newer = copy.deepcopy(body)
        inner = newer
        for each in way:
            inner = inner[each]
        inner["of_the_next_release"] = {"a": [1]}
        assert tolerant.read(model, json.dumps(newer).encode()) == plain, way


FREE = {"phases", "env", "values", "info", "annotations", "labels", "evidence", "details"}
"""Fields whose keys are the sender's own."""


def objects(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a message its objects are."""
    if isinstance(value, dict) and not (way and way[-1] in FREE):
        yield way
        for key, each in value.items():
            yield from objects(each, (*way, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from objects(each, (*way, number))
