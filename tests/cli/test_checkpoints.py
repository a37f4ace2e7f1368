"""``holdfast checkpoints``: what lies in S3, whether or not the control plane runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from holdfast import secret
from holdfast.models.setback import Place, Setback
from holdfast.policies.restore.unsaved import unsaved
from holdfast.settings import HOME_NAME
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.objects.s3 import S3Store
from tests.cli.conftest import Cli
from tests.cli.fake_gateway import FakeGateway
from tests.cli.test_commands import SPEC
from tests.cli.test_wrong_input import refused
from tests.storage.checkpoints.upload import upload


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(endpoint: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """The project's bucket, with two checkpoints of job gpt."""
    bucket = f"cli-{abs(hash(str(project)))}"
    monkeypatch.setenv("HOLDFAST_S3_ENDPOINT", endpoint)
    monkeypatch.setenv("HOLDFAST_S3_BUCKET", bucket)
    made = S3Store(
        endpoint=endpoint,
        bucket=bucket,
        access_key="holdfast",
        secret_key=secret.read(project / HOME_NAME / "secret"),
    )
    made.ensure_bucket()
    folder = project / "ckpt"
    folder.mkdir()
    (folder / ".metadata").write_bytes(b"metadata")
    for step in (4, 8):
        (folder / "__0_0.distcp").write_bytes(b"weights of step %d" % step * 1000)
        upload(made, folder, step=step, compact=False)
    return made


def flip(store: S3Store, step: int) -> None:
    key = manifests.object_key(manifests.checkpoint_key("gpt", step, 1), "__0_0.distcp")
    data = bytearray(store.get(key))
    data[77] ^= 1
    store.put(key, bytes(data))


@pytest.mark.usefixtures("store")
def test_ls_without_a_control_plane(cli: Cli) -> None:
    """S3 itself is asked."""
    found = json.loads(cli("checkpoints", "ls", "gpt", "--json").out)
    assert found == json.loads(cli("checkpoints", "list", "gpt", "--json").out)
    assert [(each["step"], each["pinned"]) for each in found] == [(8, False), (4, False)]
    assert "gpt/checkpoints/step-0000000008-e1" in cli("checkpoints", "ls", "gpt").out


def test_ls_by_state(cli: Cli, store: S3Store) -> None:
    """A pinned one may be good or suspect; a state that there is not is refused with those that there are."""
    four, eight = (manifests.checkpoint_key("gpt", step, 1) for step in (4, 8))
    manifests.mark_suspect(store, manifests.list_remote(store, "gpt")[0], "NaN at step 9")
    assert cli("checkpoints", "pin", "gpt", "8").status == 0

    def listed(*options: str) -> list[str]:
        return [each["key"] for each in json.loads(cli("checkpoints", "ls", "gpt", "--json", *options).out)]

    assert listed() == [eight, four]
    assert listed("--state", "good") == [four]
    assert listed("--state", "suspect") == listed("--state", "pinned") == [eight]
    assert "suspect, pinned" in cli("checkpoints", "ls", "gpt").out
    assert cli("checkpoints", "pin", "gpt", "8", "--remove").status == 0
    assert "none like that" in cli("checkpoints", "ls", "gpt", "--state", "pinned").out
    result = cli("checkpoints", "ls", "gpt", "--state", "bad")
    assert (result.status, "suspect" in result.err) == (2, True)


@pytest.mark.usefixtures("store")
def test_an_unknown_job_is_an_error(cli: Cli) -> None:
    """The jobs that have checkpoints are named."""
    for verb in ("ls", "show", "verify"):
        refused(cli("checkpoints", verb, "nope"), "no job 'nope'", "gpt")
    refused(cli("checkpoints", "pin", "nope", "4"), "no job 'nope'", "gpt")


@pytest.mark.usefixtures("store")
def test_a_job_without_checkpoints_is_not_an_error(cli: Cli, gateway: FakeGateway) -> None:
    """The gateway knows it; it has saved nothing yet."""
    gateway.add_job(SPEC.model_copy(update={"name": "young"}))
    result = cli("checkpoints", "ls", "young")
    assert (result.status, "none yet" in result.out) == (0, True)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("verb", ["ls", "show"])
def test_what_is_not_saved_at_present_is_shown(cli: Cli, gateway: FakeGateway, verb: str) -> None:
    """As far as the control plane reports."""
    gateway.add_job(SPEC)
    assert "NOT SAVED" not in cli("checkpoints", verb, "gpt").out
    away = Setback(place=Place.S3, count=2, since=1.0, reason="the store does not answer")
    gateway.unsaved = list(unsaved({"m0": (away,)}))
    assert "NOT SAVED: uploads to S3 fail on m0" in cli("checkpoints", verb, "gpt").out


@pytest.mark.usefixtures("store")
def test_a_step_that_is_not_there_names_those_that_are(cli: Cli) -> None:
    """For every command that takes one."""
    for arguments in (["show", "gpt", "5"], ["verify", "gpt", "5"], ["pin", "gpt", "5"]):
        refused(cli("checkpoints", *arguments), "no checkpoint at step 5", "8, 4")
    refused(cli("checkpoints", "export", "gpt", "out", "--step", "5"), "no checkpoint at step 5")


def test_pin_and_unpin(cli: Cli, store: S3Store) -> None:
    """The pin lies in S3, where retention looks; both may be repeated."""
    key = manifests.checkpoint_key("gpt", 4, 1)
    for _ in range(2):
        assert cli("checkpoints", "pin", "gpt", "4", "--reason", "paper").status == 0
        assert manifests.is_pinned(store, key)
    assert "pinned" in cli("checkpoints", "ls", "gpt").out
    assert json.loads(cli("checkpoints", "show", "gpt", "4", "--json").out)["pinned"] is True
    for _ in range(2):
        assert cli("checkpoints", "pin", "gpt", "4", "--remove").status == 0
        assert not manifests.is_pinned(store, key)


def test_verify_says_what_is_damaged_and_fails(cli: Cli, store: S3Store) -> None:
    """Status 1 and the file's name; the whole one passes."""
    assert cli("checkpoints", "verify", "gpt", "--all").status == 0
    flip(store, 4)
    result = cli("checkpoints", "verify", "gpt", "--all")
    assert result.status == 1
    assert "job gpt step 4 in S3: __0_0.distcp: digest" in result.out
    assert cli("checkpoints", "verify", "gpt").status == 0, "the newest is whole"
    printed = json.loads(cli("checkpoints", "verify", "gpt", "4", "--json").out)
    assert [bool(file["problem"]) for file in printed[0]["files"]] == [True, False]
    refused(cli("checkpoints", "verify", "gpt", "4", "--all"), "give one of them")


@pytest.mark.usefixtures("store")
def test_show_says_from_where_the_job_would_be_restored(cli: Cli, gateway: FakeGateway) -> None:
    """With machines that do not answer S3 is left; without a gateway that is shown, too."""
    shown = cli("checkpoints", "show", "gpt", "--json")
    assert shown.status == 0, shown.err
    printed = json.loads(shown.out)
    assert printed["step"] == 8
    assert any("not known" in line for line in printed["restore"])
    gateway.add_job(SPEC)
    printed = json.loads(cli("checkpoints", "show", "gpt", "--json").out)
    assert any("machine m0 does not answer" in line for line in printed["restore"])
    assert any("step 8 from S3" in line for line in printed["restore"])
    assert "step 8 from S3" in cli("checkpoints", "show", "gpt").out


@pytest.mark.torch
def test_export_writes_a_folder(cli: Cli, store: S3Store, project: Path) -> None:
    """Or nothing, when a file is damaged or the format is unknown."""
    assert cli("checkpoints", "export", "gpt", "out", "--step", "4").status == 0
    assert (project / "out" / "__0_0.distcp").read_bytes() == b"weights of step 4" * 1000
    refused(cli("checkpoints", "export", "gpt", "out"), "out exists")
    refused(cli("checkpoints", "export", "gpt", "new", "--format", "zip"), "'zip'", "dcp or safetensors")
    flip(store, 8)
    refused(cli("checkpoints", "export", "gpt", "new"), "__0_0.distcp", "its manifest says")
    assert not (project / "new").exists()


def test_prune_lists_first_and_deletes_when_confirmed(cli: Cli, store: S3Store) -> None:
    """Pinned checkpoints and the last ones stay; without ``--yes`` all do."""
    cli("checkpoints", "pin", "gpt", "4")
    arguments = ["checkpoints", "prune", "gpt", "--keep-last", "1", "--keep-every", "0", "--grace", "0"]
    printed = json.loads(cli(*arguments, "--json").out)
    assert (printed["deleted"], printed["dropped"]) == (False, [])
    cli("checkpoints", "pin", "gpt", "4", "--remove")
    printed = json.loads(cli(*arguments, "--json").out)
    assert printed["dropped"] == [manifests.checkpoint_key("gpt", 4, 1)]
    assert "add --yes" in cli(*arguments).out
    assert len(manifests.list_remote(store, "gpt")) == 2, "nothing was deleted yet"
    assert cli(*arguments, "--yes").status == 0
    assert [each.step for each in manifests.list_remote(store, "gpt")] == [8]
    refused(cli("checkpoints", "prune", "nope"), "no job 'nope'")


def test_prune_leaves_what_an_upload_under_way_may_refer_to(
    cli: Cli, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often agents look for garbage shows nothing of how long an upload takes."""
    monkeypatch.setenv("HOLDFAST_S3_TIDY_S", "0.001")
    torn = manifests.object_key(manifests.checkpoint_key("gpt", 12, 1), "__0_0.distcp")
    store.put(torn, b"of an upload under way")
    arguments = ["checkpoints", "prune", "gpt", "--keep-last", "1", "--keep-every", "0"]
    printed = json.loads(cli(*arguments, "--json").out)
    assert (printed["dropped"], printed["objects"]) == ([], 0)


def test_prune_deletes_nothing_by_rules_that_are_not_known(cli: Cli, store: S3Store) -> None:
    """The gateway is away, and the job's own rules may keep more than the defaults."""
    refused(
        cli("checkpoints", "prune", "gpt", "--keep-last", "1", "--grace", "0", "--yes"), "rules are not known"
    )
    assert len(manifests.list_remote(store, "gpt")) == 2
