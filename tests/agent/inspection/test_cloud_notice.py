"""Notices of clouds, read from a server on loopback that follows the clouds' documentation."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.agent.inspection.cloud_notice import CloudNotices, cloud
from holdfast.models.alert import AlertKind

EC2_SPOT = {"action": "terminate", "time": "2017-09-18T08:22:00Z"}
EC2_EVENT = {
    "NotBefore": "21 Jan 2019 09:00:43 GMT",
    "Code": "system-reboot",
    "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32",
    "NotAfter": "21 Jan 2019 09:17:23 GMT",
    "State": "active",
}
AZURE_EVENT = {
    "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
    "EventStatus": "Scheduled",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["myspotvm"],
    "NotBefore": "Tue, 16 Mar 2021 00:58:46 GMT",
    "Description": "",
    "EventSource": "Platform",
}


BEFORE_ALL = 1505722920.0 - 1e6
"""Before the times of all these notices (Unix seconds)."""


class Metadata:
    """A metadata service: refuses what lacks the headers that the real ones ask for."""

    def __init__(self) -> None:
        self.spot: str | None = None
        self.events: str | None = None
        self.maintenance = "NONE"
        self.preempted = "FALSE"
        self.azure: Any = {"DocumentIncarnation": 1, "Events": []}
        self.azure_name = "myspotvm"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._send("a-token" if self.headers["X-aws-ec2-metadata-token-ttl-seconds"] else None)

            def do_GET(self) -> None:
                status, body = outer.answer(self.path, self.headers)
                self._send(body, status)

            def _send(self, body: str | None, status: int = 200) -> None:
                data = (body or "").encode()
                self.send_response(status if body is not None else 404)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str, headers: Any) -> tuple[int, str | None]:
        """Status and body."""
        if path.startswith("/latest/meta-data/"):
            found = {"spot/instance-action": self.spot, "events/maintenance/scheduled": self.events}
            allowed = headers["X-aws-ec2-metadata-token"] == "a-token"
            return (200, found[path.removeprefix("/latest/meta-data/")]) if allowed else (401, "")
        if path.startswith("/computeMetadata/v1/instance/"):
            found = {"maintenance-event": self.maintenance, "preempted": self.preempted}
            return (
                (200, found[path.rpartition("/")[2]]) if headers["Metadata-Flavor"] == "Google" else (403, "")
            )
        if headers["Metadata"] != "true":
            return 400, ""
        if path == "/metadata/instance/compute/name?api-version=2021-02-01&format=text":
            return 200, self.azure_name
        return (
            (200, json.dumps(self.azure))
            if path == "/metadata/scheduledevents?api-version=2020-07-01"
            else (404, "")
        )

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def alerts(self, name: str) -> list[tuple[Any, ...]]:
        """Source, text and deadline of what a detector raises."""
        detector = CloudNotices("m1", cloud(name, self.url), 5.0, clock=lambda: BEFORE_ALL)
        found = detector.poll()
        assert detector.inspect() == []
        assert all(alert.kind is AlertKind.PLANNED_MOVE and alert.machine == "m1" for alert in found)
        return [
            (alert.evidence["source"], alert.evidence["text"], alert.evidence.get("deadline_at"))
            for alert in found
        ]


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    """The service."""
    monkeypatch.setattr("holdfast.agent.inspection.metadata_service.TIMEOUT_S", 60.0)
    service = Metadata()
    yield service
    service.close()


@pytest.mark.parametrize("name", ["ec2", "gce", "azure"])
def test_nothing_announced_is_nothing(metadata: Metadata, name: str) -> None:
    """EC2 answers 404, Compute Engine NONE and FALSE, Azure an empty list."""
    assert metadata.alerts(name) == []


def test_ec2_spot_interruption(metadata: Metadata) -> None:
    """With the time at which the instance goes."""
    metadata.spot = json.dumps(EC2_SPOT)
    (found,) = metadata.alerts("ec2")
    assert found == (
        "preemption",
        "EC2 will terminate this Spot instance at 2017-09-18T08:22:00Z",
        1505722920.0,
    )


def test_ec2_scheduled_event(metadata: Metadata) -> None:
    """Active ones only."""
    over = EC2_EVENT | {"State": "completed", "EventId": "instance-event-1"}
    metadata.events = json.dumps([EC2_EVENT, over])
    (found,) = metadata.alerts("ec2")
    assert found == (
        "maintenance",
        "EC2: the host is rebooted from 21 Jan 2019 09:00:43 GMT (scheduled reboot)",
        1548061243.0,
    )


def test_compute_engine(metadata: Metadata) -> None:
    """A live migration is no notice; a stop and a preemption are, without a time."""
    metadata.maintenance = "MIGRATE_ON_HOST_MAINTENANCE"
    assert metadata.alerts("gce") == []
    metadata.maintenance, metadata.preempted = "TERMINATE_ON_HOST_MAINTENANCE", "TRUE"
    assert [(source, at) for source, _, at in metadata.alerts("gce")] == [
        ("maintenance", None),
        ("preemption", None),
    ]


def test_an_unknown_answer_hides_no_other_notice(metadata: Metadata) -> None:
    """A preemption comes with minutes to go, whatever else the service answers."""
    metadata.spot, metadata.events = json.dumps(EC2_SPOT), json.dumps([EC2_EVENT | {"Code": "system-party"}])
    assert [source for source, *_ in metadata.alerts("ec2")] == ["preemption"]
    metadata.maintenance, metadata.preempted = "PERHAPS", "TRUE"
    assert [source for source, *_ in metadata.alerts("gce")] == ["preemption"]


def test_azure(metadata: Metadata) -> None:
    """Events of this machine; a freeze of seconds and those of others are none; one that has started has no time."""
    metadata.azure = {
        "DocumentIncarnation": 2,
        "Events": [
            AZURE_EVENT,
            AZURE_EVENT | {"EventType": "Freeze"},
            AZURE_EVENT | {"Resources": ["another"]},
            AZURE_EVENT | {"EventType": "Redeploy", "EventStatus": "Started", "NotBefore": ""},
        ],
    }
    assert metadata.alerts("azure") == [
        ("preemption", "Azure: preempt of this machine", 1615856326.0),
        ("maintenance", "Azure: redeploy of this machine", None),
    ]


def test_an_event_that_is_not_known_hides_no_other(metadata: Metadata) -> None:
    """Of the same body; one of another machine is none of ours, whatever it is."""
    metadata.azure = {
        "DocumentIncarnation": 3,
        "Events": [AZURE_EVENT | {"EventType": "Nap"}, AZURE_EVENT],
    }
    assert metadata.alerts("azure") == [("preemption", "Azure: preempt of this machine", 1615856326.0)]
    metadata.azure["Events"] = [AZURE_EVENT | {"EventType": "Nap", "Resources": ["another"]}]
    assert metadata.alerts("azure") == []
    metadata.events = json.dumps([EC2_EVENT | {"Code": "system-party"}, EC2_EVENT])
    assert len(metadata.alerts("ec2")) == 1


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("ec2", "spot", "{}"),
        ("ec2", "spot", json.dumps(EC2_SPOT | {"action": "dance"})),
        ("ec2", "spot", json.dumps(EC2_SPOT | {"time": "soon"})),
        ("ec2", "spot", "<html>captive portal</html>"),
        ("ec2", "events", json.dumps([EC2_EVENT | {"Code": "system-party"}])),
        ("ec2", "events", json.dumps([EC2_EVENT | {"NotBefore": "tomorrow"}])),
        ("gce", "maintenance", "PERHAPS"),
        ("gce", "preempted", ""),
        ("azure", "azure", {"Events": [AZURE_EVENT]}),
        ("azure", "azure", {"DocumentIncarnation": 1, "Events": [AZURE_EVENT | {"EventType": "Nap"}]}),
    ],
)
def test_unknown_answers_are_logged_and_move_nothing(
    metadata: Metadata, name: str, field: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A body that is not as documented is no notice."""
    setattr(metadata, field, value)
    assert metadata.alerts(name) == []
    assert "notices of the cloud" in caplog.text


def test_a_service_that_is_away_is_logged_once(metadata: Metadata, caplog: pytest.LogCaptureFixture) -> None:
    """Every five seconds would fill the log."""
    detector = CloudNotices("m1", cloud("ec2", metadata.url), 5.0)
    metadata.close()
    assert detector.poll() == detector.poll() == []
    assert caplog.text.count("notices of the cloud") == 1


def test_a_notice_that_stands_is_reported_again_the_oftener_the_less_time_is_left(metadata: Metadata) -> None:
    """Two weeks ahead about once a day; two minutes ahead every few seconds; without a time every ten minutes."""
    now = [1505722920.0 - 120.0]
    detector = CloudNotices("m1", cloud("ec2", metadata.url), 5.0, clock=lambda: now[0])
    metadata.spot = json.dumps(EC2_SPOT)
    counts = []
    for _ in range(6):
        counts.append(len(detector.poll()))
        now[0] += 5.0
    assert counts == [1, 0, 0, 1, 0, 1]
    metadata.preempted = "TRUE"
    detector = CloudNotices("m1", cloud("gce", metadata.url), 5.0, clock=lambda: now[0])
    assert [len(detector.poll()), len(detector.poll())] == [1, 0]
    now[0] += 600.0
    assert len(detector.poll()) == 1


def test_a_notice_whose_time_has_passed_is_one_without_a_time(metadata: Metadata) -> None:
    """The machine is there still, and goes at any moment or in hours: a move is tried now and then, and not refused."""
    now = [1505722920.0 - 4.0]
    detector = CloudNotices("m1", cloud("ec2", metadata.url), 5.0, clock=lambda: now[0])
    metadata.spot = json.dumps(EC2_SPOT)
    (first,) = detector.poll()
    assert first.evidence["deadline_at"] == 1505722920.0
    seen = []
    for _ in range(120):
        now[0] += 5.0
        seen.append(detector.poll())
    assert [len(alerts) for alerts in seen] == [0] * 119 + [1]
    assert "deadline_at" not in seen[-1][0].evidence


@pytest.mark.parametrize("answer", ["", "<html>captive portal</html>", "a portal"])
def test_a_wrong_name_hides_no_event_for_longer_than_it_is_given(
    metadata: Metadata, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Events are matched by the machine's name: with a wrong one, its own would never count."""
    metadata.azure = {"DocumentIncarnation": 2, "Events": [AZURE_EVENT]}
    detector = CloudNotices("m1", cloud("azure", metadata.url), 5.0, clock=lambda: BEFORE_ALL)
    metadata.azure_name = answer
    assert detector.poll() == []
    assert "notices of the cloud" in caplog.text
    metadata.azure_name = "myspotvm"
    assert [alert.firing for alert in detector.poll()] == [True]
    metadata.azure_name = answer
    assert detector.poll() == []


def test_a_notice_that_is_withdrawn_is_reported_as_over(metadata: Metadata) -> None:
    """Once; not while the source that announced it does not answer as documented."""
    an_hour_before = 1505722920.0 - 3600.0
    detector = CloudNotices("m1", cloud("ec2", metadata.url), 5.0, clock=lambda: an_hour_before)
    metadata.spot, metadata.events = json.dumps(EC2_SPOT), json.dumps([EC2_EVENT])
    assert [alert.firing for alert in detector.poll()] == [True, True]
    metadata.events = "<html>captive portal</html>"
    assert detector.poll() == []
    metadata.events = json.dumps([EC2_EVENT | {"State": "canceled"}])
    (over,) = detector.poll()
    assert (over.firing, over.evidence["source"], over.machine) == (False, "maintenance", "m1")
    assert detector.poll() == []
