"""A line in a kernel log to the alert at the gateway."""

from __future__ import annotations

import time

from benchmarks.site import RunningJob, Site
from benchmarks.steps import wait
from benchmarks.table import Row
from holdfast.models.job import Mode
from holdfast.paths import machine_dir

NOTES = (
    "kernel log: an Xid that needs no action is written to the log of a machine; timed until the gateway has "
    "recorded the alert, at the default intervals.",
)


def run(site: Site, n: int) -> list[Row]:
    """Seconds to the alert."""
    with site.job(2, 1, mode=Mode.OBSERVE) as job:
        seconds = [_kernel_log(site, job, number) for number in range(n)]
    return [
        Row(what="kernel log to alert", unit="s", samples=seconds, target=2.0, notes=NOTES),
    ]


def _kernel_log(site: Site, job: RunningJob, number: int) -> float:
    machine = job.machines[number % 2]
    pci = f"0000:{number % 256:02x}:00"
    began = time.time()
    with (machine_dir(site.settings.home, machine) / "kernel.log").open("a") as log:
        log.write(f"NVRM: Xid (PCI:{pci}): 43, pid=1, name=x, channel reset\n")

    def recorded() -> bool:
        known = site.ledger.alerts_of(machine)
        return any(alert.evidence.get("pci") == pci and alert.at >= began for alert in known)

    wait(recorded, 20.0, "the alert")
    return time.time() - began
