"""Wrong input: one clear message with the remedy, status 1, no traceback, nothing half done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.client import job_code
from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState
from holdfast.models.job import JobSpec
from holdfast.settings import HOME_NAME
from tests.cli.conftest import Cli, Result
from tests.cli.fake_gateway import FakeGateway
from tests.e2e.waiting import free_ports

JOB = "name: gpt\nscript: train.py\nmachines: 1\nranks_per_machine: 2\n"
SPEC = JobSpec(name="gpt", script="train.py", machines=1, ranks_per_machine=2)


def refused(result: Result, *words: str) -> None:
    """The message has all of ``words``."""
    assert result.status == 1
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.out + result.err
    for word in words:
        assert word in result.err


def write_job(text: str = JOB, script: str = "pass\n") -> str:
    """A job file and its script in the project (the current directory)."""
    Path("train.py").write_text(script)
    Path("job.yaml").write_text(text)
    return "job.yaml"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs whose code was stored."""
    seen: list[str] = []

    def keep(settings: object, job: str, code: Path) -> str:
        seen.append(job)
        return "v1"

    monkeypatch.setattr(job_code, "store", keep)
    return seen


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "incidents",
        "machines",
        "pool",
        "down",
        "pause gpt",
        "evict m0 --reason x",
        "inject nan --machine m0",
    ],
)
def test_outside_a_project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Every command but ``up`` and ``demo`` needs a project, and shows how to make one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    refused(cli(*command.split()), "not a Holdfast project", "`holdfast up`")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("home", "reason"),
    [
        ("/proc/holdfast", "cannot be made"),
        ("/etc/passwd", "expected a folder"),
        ("/etc/passwd/holdfast", "cannot be made"),
        ("/tmp/" + 300 * "a", "File name too long"),
    ],
)
def test_a_home_that_cannot_be_made(cli: Cli, home: str, reason: str) -> None:
    """``up`` names the folder and the reason."""
    refused(cli("up", "--home", home, "--port", str(free_ports())), home, reason)


@pytest.mark.usefixtures("project")
def test_gateway_not_running(cli: Cli) -> None:
    """Name the port without a listener, and how to start the gateway."""
    refused(cli("status"), "no gateway answers at http://127.0.0.1:1", "`holdfast up`")


@pytest.mark.parametrize("command", [["status"], ["submit", "job.yaml"], ["incidents"]])
def test_after_an_up_that_failed_no_other_site_is_asked(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Its port is not known, and at the default one may be another site, which would be sent the secret."""
    write_job()
    monkeypatch.delenv("HOLDFAST_GATEWAY_URL", raising=False)
    home = project / HOME_NAME
    (home / "settings.env").unlink()
    (home / "up.lock").touch()
    refused(cli(*command), f"no site runs in {home}: `holdfast up` failed there", "Run it again")
    assert "no site runs" in cli("doctor").out.replace("\n", " ")


def test_wrong_secret(cli: Cli, gateway: FakeGateway) -> None:
    """A 401 names the file that the secret came from."""
    gateway.token = "another"
    refused(cli("status"), "does not accept the secret in", "secret")


def test_secret_open_to_others(cli: Cli, project: Path) -> None:
    """A secret that others can read is not used."""
    (project / ".holdfast" / "secret").chmod(0o644)
    refused(cli("status"), "chmod 600")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HOLDFAST_PORT", "high", "integer"),
        ("HOLDFAST_GATEWAY_URL", "gw1:4300", "expected http://HOST:PORT"),
        ("HOLDFAST_S3_ENDPOINT", "s3.example", "expected http://HOST:PORT"),
    ],
)
def test_malformed_setting(cli: Cli, project: Path, name: str, value: str, expected: str) -> None:
    """A wrong setting is named with its value."""
    (project / ".holdfast" / "settings.env").write_text(f"{name}={value}\n")
    refused(cli("status"), name, f"'{value}'", expected)


@pytest.mark.parametrize("verb", ["pause", "resume", "stop", "update"])
def test_unknown_job(cli: Cli, gateway: FakeGateway, verb: str, store: list[str]) -> None:
    """The gateway's refusal is passed on in its own words, and nothing is stored."""
    gateway.add_job(SPEC)
    refused(cli(verb, "nope"), "job 'nope' is unknown", "gpt")
    assert store == []


def test_unknown_job_in_incidents(cli: Cli, gateway: FakeGateway) -> None:
    """A filter by a job that is not there is an error, not an empty list."""
    refused(cli("incidents", "--job", "nope"), "job 'nope' is unknown")
    assert gateway.calls == []


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize("command", ["evict m9 --reason x", "release m9"])
def test_unknown_machine(cli: Cli, command: str) -> None:
    """The machines that exist are listed."""
    refused(cli(*command.split()), "machine 'm9' is unknown", "m0, m1")


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_eviction_without_a_reason(cli: Cli, gateway: FakeGateway, reason: str) -> None:
    """A required reason that is empty is none: the cordon would have no reason but that a person asked."""
    answer = cli("evict", "m0", "--reason", reason)
    assert answer.status == 2
    assert "say why in a few words" in " ".join(answer.err.split())
    assert gateway.calls == []


@pytest.mark.usefixtures("gateway")
def test_unknown_incident(cli: Cli) -> None:
    """No incident, no page of nothing."""
    refused(cli("incident", "gpt-99"), "incident 'gpt-99' is unknown")


@pytest.mark.usefixtures("gateway")
def test_unknown_fault(cli: Cli) -> None:
    """The faults that exist are listed."""
    refused(cli("inject", "earthquake", "--machine", "m0"), "earthquake", "kill-rank", "bad-matmul")


@pytest.mark.usefixtures("gateway")
def test_unknown_machine_of_a_fault(cli: Cli) -> None:
    """Nothing is broken."""
    refused(cli("inject", "kill-rank", "--machine", "m9"), "unknown machine 'm9'")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: gpt\nscript: train.py\nranks_per_machine: 2\n", ["machines", "missing"]),
        (JOB.replace("machines: 1", "machines: many"), ["machines = 'many'", "a whole number"]),
        (JOB.replace("machines: 1", "machines: 0"), ["machines = 0", "1 or more"]),
        (JOB.replace("machines: 1", f"machines: {10**20}"), [f"machines = {10**20}", "100000 or less"]),
        (JOB.replace("machine: 2", "machine: 5000"), ["ranks_per_machine = 5000", "1024 or less"]),
        (JOB.replace("machines: 1", "machines: true"), ["line 3", "machines = True", "a whole number"]),
        (JOB + "checkpoint: {retention: {keep_last: yes}}\n", ["keep_last = True", "a whole number"]),
        (JOB + "stop_grace_s: true\n", ["stop_grace_s = True", "a number"]),
        (JOB.replace("name: gpt", "name: My Job"), ["name = 'My Job'", "lower-case letters"]),
        (JOB.replace("machines: 1", "machines: {}"), ["machines.min: missing", "machines.want: missing"]),
        (JOB + "args: [--steps, 300]\n", ["args.1 = 300", 'with quotes it is: "300"']),
        (JOB + "args: --steps 300\n", ["args = '--steps 300'", "a list, such as [a, b]"]),
        (JOB + "args: [12:30, 010]\n", ["args.1 = 10: expected text", 'quotes it is: "010"']),
        (JOB + "stop_grace_s: 0:30\n", ["stop_grace_s = '0:30'", "expected a number"]),
        (JOB + "args: [2026-11-24]\n", ["args.0 = 2026-11-24: expected text", 'it is: "2026-11-24"']),
        (JOB.replace("gpt", "yes"), ['with quotes it is: "yes"']),
        (JOB + "1: 2\n", ["1: expected text as the name of a field"]),
        (JOB + 'args: ["a\\0b"]\n', ["line 5: args", "without NUL"]),
        (JOB + "roles: {a: {script: train.py, gpus: [-1]}}\n", ["roles.a.gpus = -1", "0 or more"]),
        (JOB + "env: {DEBUG: true}\n", ["env.DEBUG = True", 'with quotes it is: "true"']),
        (JOB + "env: {A=B: x}\n", ["env: 'A=B'", "a variable's name"]),
        (JOB + 'env: {A: "x\\0"}\n', ["env: A = 'x\\x00'", "without NUL"]),
        (JOB + "env: {RANK: '1', HOLDFAST_JOB: b}\n", ["env: HOLDFAST_JOB, RANK: set by the agent"]),
        (JOB + "args: &a [*a]\n", ["contains itself"]),
        pytest.param(JOB + f"args: {'[' * 3000}{']' * 3000}\n", ["nested too deeply"], id="nested"),
        (JOB + "checkpoint:\n", ["checkpoint = None", "fields with values"]),
        (JOB + "checkpoint: {peer: maybe}\n", ["checkpoint.peer = 'maybe'", "true or false"]),
        (JOB + "stop_grace_s: 600\n", ["stop_grace_s = 600", "60 or less"]),
        (JOB + "start_from: {job: a, step: last}\n", ["start_from.step: 'last'", "or newest"]),
        (JOB + "start_from: {job: a, parts: model}\n", ["start_from.parts: 'model'", "[model]"]),
        (JOB + "machnies: 3\n", ["machnies = 3", "no such field", "ranks_per_machine"]),
        (
            JOB + "roles: {w: {script: t.py, replicaz: 3}}\n",
            ["w.replicaz = 3", "fields of roles.w: kind, script,"],
        ),
        (JOB + "start_from: {jobb: a}\n", ["start_from.jobb", "fields of start_from: job, step,"]),
        (JOB + "checkpoint: {s3_every_steps: 0}\n", ["checkpoint.s3_every_steps = 0"]),
        (JOB + "parallelism: {tp: 3}\n", ["tp x pp = 3", "2 ranks"]),
        (JOB + "  bad: [\n", ["line", "not valid YAML"]),
        ("- a\n- b\n", ["expected keys with values"]),
        ("name: !ours gpt\n", ["not valid YAML", "!ours"]),
        (JOB + "env: {A: b}\nenv: {C: d}\n", ["line 6", "env is given twice"]),
    ],
)
def test_malformed_job_file(
    cli: Cli, gateway: FakeGateway, store: list[str], text: str, words: list[str]
) -> None:
    """Field, value and what was expected; nothing is stored and nothing submitted."""
    refused(cli("submit", write_job(text)), "job.yaml", *words)
    assert (gateway.calls, store) == ([], [])


@pytest.mark.usefixtures("gateway")
def test_missing_job_file(cli: Cli) -> None:
    """The path is named."""
    refused(cli("submit", "nowhere.yaml"), "nowhere.yaml", "No such file")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ((JOB.replace("train.py", "other.py"),), ["script = 'other.py'", "no such file"]),
        ((JOB.replace("train.py", "../../etc/passwd"),), ["inside the code directory"]),
        ((JOB.replace("train.py", "-m pkg.train"),), ["no such file", "runpy.run_module('pkg.train'"]),
        ((JOB, "PK\5\6" + 18 * "\0"), ["zip application", "__main__.py"]),
        ((JOB + "code: nowhere\n",), ["code = 'nowhere'", "no directory"]),
        ((JOB, "def broken(:\n"), ["not valid Python", "line 1", "Nothing was submitted"]),
    ],
)
def test_script_that_cannot_run_is_found_before_it_is_shipped(
    cli: Cli, gateway: FakeGateway, store: list[str], job: tuple[str, ...], words: list[str]
) -> None:
    """The script is looked at before anything is stored."""
    refused(cli("submit", write_job(*job)), *words)
    assert (gateway.calls, store) == ([], [])


def fallen(error_type: str, message: str) -> Incident:
    """The incident of a script that raised."""
    evidence = {"error_type": error_type, "message": message, "user_frame": "train.py:1 in <module>"}
    return Incident(
        id="gpt-1",
        job="gpt",
        incident_class=IncidentClass.USER_CODE_ERROR,
        state=IncidentState.OPEN,
        epoch=1,
        alerts=(Alert(kind=AlertKind.RANK_EXIT, job="gpt", rank=0, at=101.0, evidence=evidence),),
        detected_at=101.0,
        opened_at=101.0,
    )


def test_a_first_save_that_is_refused_stops_the_job(cli: Cli, gateway: FakeGateway, store: list[str]) -> None:
    """The first step alone is no success: the script ends right after it."""
    gateway.step = 1
    gateway.on_submit = lambda _: gateway.incidents.append(fallen("ScriptRefusedError", "state['a']: a lock"))
    refused(cli("submit", write_job()), "at its first save, after step 1", "a lock", "submit again")
    assert gateway.calls[-1] == ("/v1/jobs/gpt/stop", None)


def test_a_state_to_start_from_that_cannot_be_restored_stops_the_job(
    cli: Cli, gateway: FakeGateway, store: list[str]
) -> None:
    """Its steps count on from there, so the job shows one before it has made any."""
    gateway.step = 400
    wrong = fallen("CheckpointError", "model.weight: has a tensor [2]")
    gateway.on_submit = lambda _: gateway.incidents.append(wrong)
    job = write_job(JOB + "start_from: {job: el, step: 400}\n")
    refused(cli("submit", job), "failed at its restore, from job el step 400", "has a tensor [2]")
    assert gateway.calls[-1] == ("/v1/jobs/gpt/stop", None)
    gateway.incidents.clear()
    gateway.jobs.clear()
    gateway.on_submit = lambda _: None
    assert "no step after 0 s" in cli("submit", job, "--wait", "0.3").out


def test_what_else_falls_after_the_first_step_is_recovered(
    cli: Cli, gateway: FakeGateway, store: list[str]
) -> None:
    """A playbook is at it: submitting stops nothing."""
    gateway.step = 1
    gateway.on_submit = lambda _: gateway.incidents.append(fallen("RuntimeError", "NCCL error"))
    assert cli("submit", write_job()).status == 0
    assert [path for path, _ in gateway.calls] == ["/v1/jobs"]


def test_script_that_fails_at_import_stops_the_job(cli: Cli, gateway: FakeGateway, store: list[str]) -> None:
    """The script's own error is shown, and the job does not stay behind."""
    gateway.on_submit = lambda _: gateway.incidents.append(fallen("ImportError", "no module named nope"))
    refused(cli("submit", write_job()), "ImportError: no module named nope", "train.py:1", "submit again")
    assert gateway.calls[-1] == ("/v1/jobs/gpt/stop", None)


def test_a_file_that_git_ignores_is_named_as_not_shipped(
    cli: Cli, gateway: FakeGateway, store: list[str]
) -> None:
    """A data file beside the script; the script itself, before anything is stored."""
    job = Path(write_job())
    subprocess.run(["git", "init", "-q", job.parent], check=True)
    (job.parent / ".gitignore").write_text("*.bin\n")
    (job.parent / "train.bin").write_bytes(b"1")
    missing = "[Errno 2] No such file or directory: './train.bin'"
    gateway.on_submit = lambda _: gateway.incidents.append(fallen("FileNotFoundError", missing))
    refused(cli("submit", str(job)), "train.bin lies in", "git ignores it", "a path that the machines have")
    (job.parent / "train.bin").unlink()
    gateway.on_submit = None
    (job.parent / ".gitignore").write_text("train.py\n")
    before = list(store)
    refused(cli("submit", str(job)), "script = 'train.py'", "git ignores it")
    assert store == before


@pytest.mark.usefixtures("store")
def test_no_standby_left(cli: Cli, gateway: FakeGateway) -> None:
    """The gateway's refusal states how many are needed and how many there are."""
    gateway.machines.clear()
    refused(cli("submit", write_job()), "needs 1 machines", "0 are on standby")


def test_job_that_runs_already(cli: Cli, gateway: FakeGateway, store: list[str]) -> None:
    """A second job of the same name stores nothing."""
    gateway.add_job(SPEC)
    refused(cli("submit", write_job()), "'gpt' is running already", "holdfast stop gpt")
    assert (gateway.calls, store) == ([], [])


def test_demo_outside_a_clone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo needs the example that it trains, and leaves nothing where there is none."""
    monkeypatch.chdir(tmp_path)
    refused(cli("demo"), "examples/train_gpt.py", "make demo")
    assert list(tmp_path.iterdir()) == []


def test_the_installed_command_prints_no_traceback(tmp_path: Path) -> None:
    """The same through the real entry point, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "status"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: no .holdfast/")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "stop {}",
        "pause {}",
        "resume {}",
        "release {}",
        "evict {} --reason x",
        "incident {}",
        "incidents --job {}",
        "approve {}",
        "checkpoints ls {}",
        "doctor {}",
        "chaos {}",
    ],
)
def test_commands_refuse_them_before_they_send_a_request(cli: Cli, command: str) -> None:
    """Or a name with slashes would be another route of the gateway's."""
    result = cli(*command.format("x/../../machines/m1/release").split())
    assert result.status == 1
    assert "x/../../machines/m1/release" in result.err
    assert "'s name: expected" in result.err


@pytest.mark.parametrize(
    "command",
    [
        "move gpt m0 --within {}",
        "submit job.yaml --wait {}",
        "wait gpt --timeout {}",
        "inject stop --seconds {}",
        "inject packet-loss --percent {}",
        "pool --rate {}",
        "pool --quantile {}",
        "simulate --days {}",
        "simulate --rate {}",
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_that_are_not_finite_are_refused(cli: Cli, command: str, number: str) -> None:
    """Some pass every bound, and JSON to a gateway cannot carry them."""
    result = cli(*command.format(number).split())
    assert result.status == 2
    assert "Invalid value for '--" in result.err


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("incidents --state nonsense --json", "nonsense"),
        ("checkpoints ls --json", "job"),
        ("machines --no-such-option --json", "--no-such-option"),
        ("no-such-command --json", "no-such-command"),
    ],
)
def test_wrong_usage_is_one_document_too(cli: Cli, command: str, word: str) -> None:
    """Standard output is never empty for a script; people have the usage on standard error, and the status is 2."""
    result = cli(*command.split())
    assert result.status == 2
    assert word.lower() in json.loads(result.out)["error"].lower()
    assert "Usage:" in result.err
    assert cli(*command.removesuffix(" --json").split()).out == ""


@pytest.mark.parametrize("number", ["-1", "-2.5"])
def test_a_number_of_machines_below_zero_is_a_wrong_number(
    cli: Cli, gateway: FakeGateway, number: str
) -> None:
    """No option is called so."""
    found = cli("scale", "gpt", number)
    assert found.status == 2
    assert f"{number}: expected a whole number" in found.out + found.err
    assert "No such option" not in found.out + found.err
    assert gateway.calls == []
