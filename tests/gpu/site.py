"""A whole site whose job trains on one GPU, with faults: ``python -m tests.gpu.site [--device cpu] [--faults hang]``.

Two machines and a standby, all on this host, with every service of ``holdfast up``. A run without faults comes
first; then one whose rank is killed, whose machine is killed, whose kernel writes past its memory, and whose kernel
never ends. The final weights must be the same, bit for bit. Prints what each recovery cost; ends with status 1 where
anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.models.alert import Incident, IncidentClass
from tests.e2e.pace import digest
from tests.e2e.site import Site
from tests.gpu.recorded import measured, record

CODE = Path(__file__).parent / "job"
STEPS = 400
MACHINES = 2
NAME = "faults"
LIMIT_S = 150.0


def main() -> int:
    """Play it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for each thing that is waited for")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=[*FAULTS])
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-gpu-"))
    home = folder / "home"
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    os.environ["HOLDFAST_HOME"] = str(home)
    site: Site | None = None
    try:
        began = time.monotonic()
        site = Site.up(home, MACHINES + 1)
        measured(f"site: up in {time.monotonic() - began:.1f} s")
        _play(site, folder, args.device, args.limit_s, [FAULTS[name] for name in args.faults])
        return 0
    except AssertionError as error:
        sys.stdout.write(f"site: WRONG: {error}\n")
        if site is not None:
            record("site-evidence.txt", site.evidence())
            sys.stdout.write(site.evidence()[-6000:])
        return 1
    finally:
        _keep_logs(home)
        if site is not None:
            site.down()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Fault:
    """One that is injected, and what was written down of it first."""

    what: str
    expected: IncidentClass
    slot: int
    """Of the machine that it hits."""
    costs_it: bool
    strike: Callable[[Site, Path, str], object]


FAULTS = {
    "rank": Fault(
        "a rank is killed",
        IncidentClass.JOB_CRASH,
        slot=1,
        costs_it=False,
        strike=lambda site, _, machine: site.fault("kill-rank", machine),
    ),
    "machine": Fault(
        "a machine is killed",
        IncidentClass.MACHINE_FAULT,
        slot=0,
        costs_it=True,
        strike=lambda site, _, machine: site.fault("kill-machine", machine),
    ),
    "memory": Fault(
        "a kernel writes past its memory",
        IncidentClass.JOB_CRASH,
        slot=1,
        costs_it=False,
        strike=lambda _, own, __: (own / "break-1").touch(),
    ),
    "hang": Fault(
        "a kernel never ends",
        IncidentClass.JOB_HANG,
        slot=1,
        costs_it=False,  # a rank that only stands out is retried in place at first
        strike=lambda _, own, __: (own / "spin-1").touch(),
    ),
}


def _play(site: Site, folder: Path, device: str, limit_s: float, faults: list[Fault]) -> None:
    calm = _run(site, folder / "calm", device, [], limit_s)
    faulty = _run(site, folder / NAME, device, faults, limit_s)
    assert calm == faulty, f"the weights differ: {calm} without faults, {faulty} with them"
    measured(f"site: the weights are the same, bit for bit: {calm}")


def _run(
    site: Site,
    own: Path,
    device: str,
    faults: list[Fault],
    limit_s: float,
) -> str:
    """The digest of the final weights of one run, in a folder of its own by which its job is named."""
    name, out = own.name, own / "weights.pt"
    own.mkdir()
    if not faults:
        (own / "hurry").touch()
    began = time.monotonic()
    site.submit(
        name,
        *("--device", device, "--out", str(out), "--folder", str(own)),
        steps=STEPS,
        machines=MACHINES,
        spare=1 if faults else 0,
        code_dir=CODE,
        script="train.py",
        first=1,
    )
    measured(f"site: {name}: first step {time.monotonic() - began:.1f} s after the submission")
    gone: set[str] = set()
    for number, fault in enumerate(faults, 1):
        site.wait_more_steps(name, 10)
        struck, machine = time.time(), site.job(name).machines[fault.slot]
        fault.strike(site, own, machine)
        incident = site.wait_recovered(name, number, limit_s)
        _report(site, fault.what, incident, struck)
        assert incident.incident_class is fault.expected, f"{fault.what}: {site.describe(name)}"
        gone |= {machine} if fault.costs_it else set()
        assert site.evicted() == gone, f"{fault.what}: {site.evicted()} are out of service, not {gone}"
    (own / "hurry").touch()
    site.wait_done(name, limit_s)
    measured(f"site: {name}: done {time.monotonic() - began:.1f} s after the submission")
    return digest(out)


def _report(site: Site, what: str, incident: Incident, struck: float) -> None:
    epochs = site.epochs(NAME)
    before, after = epochs[-2], epochs[-1]
    lost = max(0, (before.last_step or 0) - after.start_step)
    recovered = incident.recovered_at or time.time()
    measured(
        f"site: {what}: {incident.incident_class}, opened {incident.opened_at - struck:.1f} s after it, "
        f"a new step after {recovered - struck:.1f} s, {lost} steps again; {incident.summary}"
    )


def _keep_logs(home: Path) -> None:
    for log in sorted(home.glob("machines/*/logs/*/*.log")):
        record(f"site-{log.parts[-4]}-{log.parts[-2]}-{log.name}", log.read_text(errors="replace"))
    for log in sorted(home.glob("machines/*/agent.log")):
        record(f"site-{log.parts[-2]}-agent.log", log.read_text(errors="replace"))


if __name__ == "__main__":
    sys.exit(main())
