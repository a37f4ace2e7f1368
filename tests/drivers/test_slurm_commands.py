"""Slurm's commands: repeated while slurmctld is away, errors distinguished by text, called without our environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.drivers import from_settings
from holdfast.drivers.slurm import SlurmDriver, listing
from holdfast.drivers.slurm.commands import CommandAnswer, SlurmCommands
from holdfast.errors import (
    HoldfastError,
    RefusedError,
    SettingsError,
    UnavailableError,
    UnknownError,
)
from holdfast.settings import Settings
from tests.drivers.scripted_slurm import Queue, Scripted, driver
from tests.retries import HandClock, by_hand

AWAY = CommandAnswer(
    status=1, err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """Time passes only while a command waits to be repeated: however slow the host, there are as many tries."""
    return by_hand(monkeypatch)


@pytest.mark.usefixtures("clock")
def test_a_command_is_repeated_while_slurmctld_is_away() -> None:
    """Two failures, then an answer."""
    answers = [AWAY, AWAY, CommandAnswer(status=0, out="fine")]
    run = Scripted(squeue=lambda _: answers.pop(0))
    assert SlurmCommands({}, patience_s=10, run=run)("squeue") == "fine"
    assert run.count("squeue") == 3


@pytest.mark.usefixtures("clock")
def test_patience_ends() -> None:
    """The error has the command and Slurm's answer."""
    run = Scripted(squeue=lambda _: AWAY)
    with pytest.raises(UnavailableError, match=r"`squeue -h`.*Unable to contact"):
        SlurmCommands({}, patience_s=0.2, run=run)("squeue", "-h")
    assert run.count("squeue") >= 2


def test_a_command_that_blocks_is_unavailable() -> None:
    """With a dead slurmctld squeue blocks; we do not."""

    def block(_: Sequence[str]) -> CommandAnswer:
        raise subprocess.TimeoutExpired("squeue", 15)

    with pytest.raises(UnavailableError, match=r"within 9 s.*slurmctld"):
        SlurmCommands({}, patience_s=0.05, command_s=9, run=Scripted(squeue=block))("squeue")


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("slurm_update error: Invalid user id", RefusedError),
        ("scancel: error: Kill job error on job id 2: Access/permission denied", RefusedError),
        ("slurm_update error: Invalid node name specified", UnknownError),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", SettingsError),
        ("sbatch: unrecognized option '--foo'", SettingsError),
        (
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            UnavailableError,
        ),
        ("slurm_load_jobs error: Protocol authentication error", UnavailableError),
        ("scancel: error: Kill job error on job id 2: Message receive failure", UnavailableError),
    ],
)
def test_messages_of_slurm_are_distinguished(message: str, error: type[HoldfastError]) -> None:
    """Messages of 22.05; only what may pass is repeated."""
    run = Scripted(x=lambda _: CommandAnswer(status=1, err=message))
    with pytest.raises(error):
        SlurmCommands({}, patience_s=0.2, run=run)("x")
    assert (run.count("x") > 1) is (error is UnavailableError)


def test_missing_commands_are_named(tmp_path: Path) -> None:
    """The real runner, where there is no Slurm."""
    with pytest.raises(SettingsError, match="squeue"):
        SlurmDriver(Settings(home=tmp_path), env={"PATH": str(tmp_path)}).machines()


def test_job_around_us_does_not_shine_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane may itself run in a Slurm job, and the driver in a flow run."""
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "PREFECT__FLOW_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/lab.conf")
    for name in ("SLURM_CONF_SERVER", "SLURM_JWT"):
        monkeypatch.setenv(name, "needed")
    run = Queue().runner()
    driver(tmp_path, run).provision(1)
    assert run.env["SLURM_CONF"] == "/etc/slurm/lab.conf"
    assert run.env["SLURM_CONF_SERVER"] == run.env["SLURM_JWT"] == "needed"
    assert run.env["HOLDFAST_HOME"] == str(tmp_path)
    assert run.env["HOLDFAST_PYTHON"] == sys.executable
    assert not {"SLURM_JOB_ID", "SLURM_NTASKS", "PREFECT__FLOW_RUN_ID"} & run.env.keys()


def test_what_a_user_has_set_for_squeue_hides_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is not listed counts as ended, and its machine as gone."""
    for name in ("SQUEUE_PARTITION", "SQUEUE_USERS", "SINFO_PARTITION"):
        monkeypatch.setenv(name, "debug")
    monkeypatch.setenv("SBATCH_ACCOUNT", "team")
    run = Queue().runner()
    driver(tmp_path, run).provision(1)
    assert run.env["SBATCH_ACCOUNT"] == "team"
    assert not [name for name in run.env if name.startswith(("SQUEUE_", "SINFO_"))]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"options": "--x '"}, "HOLDFAST_SLURM_OPTIONS"),
        (
            {"options": "--partition=train -J mine"},
            "HOLDFAST_SLURM_OPTIONS.*--job-name.*HOLDFAST_SLURM_JOB_NAME",
        ),
        ({"options": "--array=0-3"}, "--array"),
        ({"options": "--clusters other"}, "--clusters"),
        ({"script": "/nowhere"}, "HOLDFAST_SLURM_SCRIPT"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict[str, object], named: str) -> None:
    """At once, not when a machine dies."""
    with pytest.raises(SettingsError, match=named):
        driver(tmp_path, Scripted(), **settings)


def test_settings_name_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`HOLDFAST_DRIVER=slurm`, with options for sbatch from the environment or what `holdfast up` kept."""
    made = from_settings(Settings(home=tmp_path, driver="slurm"))
    assert isinstance(made, SlurmDriver)
    (tmp_path / "settings.env").write_text("HOLDFAST_SLURM_OPTIONS=--x '\n")
    with pytest.raises(SettingsError, match=r"HOLDFAST_SLURM_OPTIONS = \"--x '\": No closing quotation"):
        from_settings(Settings(home=tmp_path, driver="slurm"))
    monkeypatch.setenv("HOLDFAST_SLURM_OPTIONS", "--partition=train")
    from_settings(Settings(home=tmp_path, driver="slurm"))


def test_marks_of_sinfo_are_read() -> None:
    """https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES"""
    text = "node1|idle|none\nnode2|down*|Not responding\nnode3|drained|holdfast: a | b\nnode4|mixed-|none\n"
    nodes = listing.nodes(text)
    assert [node.usable for node in nodes.values()] == [True, False, False, True]
    assert [node.responds for node in nodes.values()] == [True, False, True, True]
    assert nodes["node3"].reason == "holdfast: a | b"


def test_lines_that_are_no_jobs_are_skipped() -> None:
    """As warnings that some sites' wrappers print."""
    text = "squeue: warning\n12|COMPLETING|node1|None|holdfast group=#1\n\n11|PENDING||Priority|x|y\n"
    found = listing.allocations(text)
    assert [(job.id, job.queued, job.over, job.comment) for job in found] == [
        (11, True, False, "x|y"),
        (12, False, False, "holdfast group=#1"),
    ]
