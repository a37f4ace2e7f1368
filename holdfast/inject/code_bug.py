"""An engineer ships a change with a bug: it starts well and raises TypeError some steps later."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from holdfast.errors import RefusedError
from holdfast.inject.target import Target
from holdfast.models.job import Job

AFTER_STEPS = 5
_SESSION = re.compile(r"^\s*(\w+)\s*(?::[^=\n]+)?=\s*(?:holdfast\.)?Session\(", re.MULTILINE)
# Statistics of the kind that people add in a hurry: the divisor should have been the list.
_BUG = (
    '{indent}_seen = globals().setdefault("_steps_seen", [])\n'
    "{indent}_seen.append({step})\n"
    "{indent}if len(_seen) > {after}:\n"
    '{indent}    print(f"mean step {{sum(_seen) / len({step})}}")\n'
)


def strike(target: Target, rank: int | None) -> None:
    """Store a broken version of the job's code, and send it as an update, now."""
    from holdfast.storage.code import versions  # noqa: PLC0415  (the CLI lists faults without the control plane's extras)
    from holdfast.storage.objects.configure import from_settings  # noqa: PLC0415

    job = Job.model_validate(target.gateway("GET", f"/v1/jobs/{target.job()}"))
    objects = from_settings(target.settings)
    with tempfile.TemporaryDirectory(prefix="holdfast-bug-") as temporary:
        checkout = versions.checkout(objects, job.name, job.code_version, Path(temporary) / "code")
        script = checkout / job.spec.script
        script.write_text(with_bug(script.read_text(), str(job.spec.script)))
        version = versions.store(objects, job.name, checkout)
    body = {"version": version, "when": "now", "note": "print the mean of recent steps"}
    target.gateway("POST", f"/v1/jobs/{job.name}/update", body)


def with_bug(source: str, script: str, after_steps: int = AFTER_STEPS) -> str:
    """Return ``source`` with a TypeError that is raised ``after_steps`` steps after every start.

    Raises:
        RefusedError: there is no ``session.step(...)`` to put it before.
    """
    session = _SESSION.search(source)
    name = session[1] if session else "session"
    call = re.compile(rf"^(?P<indent>[ \t]+){name}\.step\(\s*(?P<step>\w+)", re.MULTILINE)
    match = call.search(source)
    if match is None:
        raise RefusedError(f"code-bug: {script} has no line `{name}.step(STEP, ...)` to put a bug before.")
    bug = _BUG.format(indent=match["indent"], step=match["step"], after=after_steps)
    return source[: match.start()] + bug + source[match.start() :]
