"""Hostile names are refused by every model that carries one, and by what takes names without a model."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from holdfast import models, names
from holdfast.deployments.gateway.api.jobs import Submit, Update
from holdfast.deployments.gateway.intake import alertmanager
from holdfast.deployments.gateway.intake.alertmanager import WebhookAlert
from holdfast.errors import SettingsError
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.names import ObjectKey
from holdfast.storage.checkpoints.save.buffers import ShardHeader
from holdfast.tasks.recovery_context import RecoveryContext, Request

NAMED = {
    "job",
    "machine",
    "machines",
    "peer_machine",
    "incarnation",
    "version",
    "code_version",
    "incident_id",
    "key",
    "rank",
    "suspects",
    "dropped",
}
"""Fields of these names carry names from outside, in any model; and the ones below, whose name is too general:"""
ALSO = {("JobSpec", "name"), ("Machine", "name"), ("Witness", "name"), ("Incident", "id"), ("Request", "id")}
COUNTS = {("JobSpec", "machines"), ("Request", "machines"), ("RoleSpec", "machines")}
OWN_WORDS = {("Action", "key")}
"""A key that the playbook makes itself."""

HOSTILE = (
    "..",
    "../../../../evil",
    "a/../../b",
    "/etc/passwd",
    "a\\b",
    "-rf",
    "--help",
    ".hidden",
    "a\0b",
    "a\n",
    "a\nb",
    "a\r",
    " a",
    "a b",
    "a;b",
    "$(a)",
    "a%2e%2e",
    "jоb",
    "a\u202eb",
    "\uff0e\uff0e",
    "\u2024\u2024/x",
    "a\x1b[31m",
    "a" * 2000,
    "\ud800",
)


def carried() -> Iterator[tuple[str, str, TypeAdapter[Any]]]:
    """Every field that carries a name."""
    for module in pkgutil.iter_modules(models.__path__):
        importlib.import_module(f"{models.__name__}.{module.name}")
    kinds = {kind for kind in _below(BaseModel) if kind.__module__.startswith(models.__name__)} | {
        Submit,
        Update,
        Request,
        RecoveryContext,
        ShardHeader,
    }
    for kind in sorted(kinds, key=lambda each: each.__name__):
        for field, info in kind.model_fields.items():
            where = kind.__name__, field
            if (field in NAMED or where in ALSO) and where not in COUNTS | OWN_WORDS:
                yield *where, TypeAdapter(info.rebuild_annotation())


def _below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


CARRIED = list(carried())
hostile = st.sampled_from(HOSTILE) | st.text().filter(
    lambda text: bool(text) and (not text.isascii() or ".." in text.split("/") or not text[0].isalnum())
)


def test_there_are_many_such_fields() -> None:
    """The listing below finds them."""
    assert len(CARRIED) > 60
    assert {("PrepareCode", "version"), ("Start", "job"), ("Alert", "machine")} <= {
        each[:2] for each in CARRIED
    }


@pytest.mark.parametrize(("model", "field", "adapter"), CARRIED, ids=[f"{m}.{f}" for m, f, _ in CARRIED])
def test_no_model_takes_a_hostile_name(model: str, field: str, adapter: TypeAdapter[Any]) -> None:
    """Alone, or in a list where the field is one."""
    for name in (*HOSTILE, -1, 2**40):
        for value in (name, (name,)):
            with pytest.raises(ValidationError):
                adapter.validate_python(value)


@given(hostile)
def test_no_kind_of_name_takes_what_is_made_up(name: str) -> None:
    """Whatever text that is no ASCII, leaves a folder, or begins as an option or hidden file does."""
    for kind in (names.JOB, names.RUN, names.MACHINE, names.VERSION, names.INCIDENT):
        with pytest.raises(SettingsError):
            names.require(kind, name)
    with pytest.raises(ValidationError):
        TypeAdapter(ObjectKey).validate_python(name)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True))
def test_what_is_taken_is_one_part_of_a_path(name: str) -> None:
    """It names something inside of the folder that it is put in."""
    taken = names.require(names.MACHINE, name)
    assert PurePosixPath("/site", taken).parent == PurePosixPath("/site")
    assert not taken.startswith((".", "-"))


@pytest.mark.parametrize(
    "key",
    ["gpt/code/0123456789ab.tar.gz", "gpt/step-00000020/e2", "gpt/step-00000020/e2/", "gpt/e1/__0_0.distcp"],
)
def test_keys_of_the_bucket_are_taken(key: str) -> None:
    """As they are made."""
    assert TypeAdapter(ObjectKey).validate_python(key) == key


def test_an_update_names_a_version_wherever_it_comes_from() -> None:
    """The version of an alert becomes a folder's name."""
    with pytest.raises(ValidationError):
        Alert(kind=AlertKind.CODE_UPDATE, job="gpt", at=1.0, evidence={"version": "../../../../evil"})


@pytest.mark.parametrize("label", ["holdfast_job", "machine", "incarnation"])
def test_a_hostile_label_is_refused_by_name(label: str) -> None:
    """One alert of a webhook is refused; the others are taken."""
    sent = WebhookAlert(status="firing", labels={"alertname": "Xid", label: "../x"})
    with pytest.raises(SettingsError, match=f"{label.removeprefix('holdfast_')} '../x' is not"):
        alertmanager.parse(sent, "firing", 1.0)


@pytest.mark.parametrize("zone", ["", "Z", "+00:00"])
def test_a_time_without_a_zone_is_in_utc(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the gateway's host is not the sender's: an alert would be hours old, or another signal."""
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    try:
        sent = WebhookAlert.model_validate(
            {"labels": {"alertname": "Xid", "machine": "m1"}, "startsAt": f"2026-03-01T00:00:00{zone}"}
        )
        assert alertmanager.parse(sent, "firing", 2e9).at == 1772323200.0
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({"job": "node-exporter", "machine": "m1"}, None),
        ({"job": "gpt", "machine": "m1"}, "gpt"),
        ({"job": "node-exporter"}, "node-exporter"),
        ({"job": "gpt", "holdfast_job": "bert", "machine": "m1"}, "bert"),
    ],
)
def test_the_name_of_a_scrape_configuration_is_no_job(labels: dict[str, str], job: str | None) -> None:
    """Prometheus sets it: beside a machine it names no job of ours; alone it is refused as unknown later."""
    sent = WebhookAlert(status="firing", labels={"alertname": "Xid", **labels})
    assert alertmanager.parse(sent, "firing", 1.0, {"gpt"}).job == job


def test_a_refusal_is_a_sentence() -> None:
    """With the article that the noun takes."""
    with pytest.raises(SettingsError, match="is not an incident's name"):
        names.require(names.INCIDENT, "a b")
    with pytest.raises(SettingsError, match="is not a machine's name"):
        names.require(names.MACHINE, "a b")
