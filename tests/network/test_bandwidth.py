"""A link that is thousands of times slower, between real hosts: the pair check measures it, and names its machine."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.machine_checks import _judge_pair
from holdfast.models.agent import Diagnose, Rendezvous
from holdfast.models.alert import Finding
from holdfast.policies.diagnose import pairing
from holdfast.policies.diagnose.verdicts import judge
from tests.network.lab import Lab

RUN = """
import json, sys
from holdfast.agent.diagnostics import check_process, collectives
from holdfast.agent.diagnostics.check_part import CheckPart
for part in json.loads(sys.argv[1]):
    check_process.run(collectives.all_gather, CheckPart(**part))
"""
LIMIT_S = 90.0
SLOW_KBIT = 1000
"""The namespaces' own links carry some Gbit/s."""


def gather(wires: Lab, hosts: list[str], pairs: list[pairing.Pair], folder: Path) -> list[Finding]:
    """All-gather within each pair, each host's pairs one after the other; findings as its agent reports them."""
    from torch.distributed import TCPStore  # noqa: PLC0415

    store = TCPStore(wires.control, 0, is_master=True, wait_for_workers=False)
    parts: dict[str, dict[str, CheckPart]] = {host: {} for host in hosts}
    for number, (left, right) in enumerate(pairs):
        for rank, (host, peer) in enumerate([(left, right), (right, left)]):
            own = folder / f"{number}"
            own.mkdir(exist_ok=True)
            parts[host][peer] = CheckPart(
                rank,
                2,
                str(own),
                LIMIT_S,
                host=wires.control,
                port=store.port,
                prefix=f"pair{number}",
                measure=True,
            )
    running = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", wires.namespace(host), "env", "GLOO_SOCKET_IFNAME=eth0"),
                *(sys.executable, "-c", RUN, json.dumps([asdict(part) for part in own.values()])),
            ]
        )
        for host, own in parts.items()
    ]
    try:
        for process in running:
            process.wait(LIMIT_S)
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [
        finding
        for host, own in parts.items()
        for peer, part in own.items()
        for finding in _judge_pair(
            command(peer, part.rank), host, {part.rank: CheckOutcome.read(part.outcome_path)}
        )
    ]


def command(peer: str, rank: int) -> Diagnose:
    """The command that an agent had."""
    meet = Rendezvous(host="127.0.0.1", port=1)
    return Diagnose(
        job="j", epoch=1, incarnation="i", check="all_gather", peer=peer, process_rank=rank, rendezvous=meet
    )


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_link_that_is_thousands_of_times_slower_is_found(wires: Lab, tmp_path: Path) -> None:
    """It still carries every byte, so that nothing fails; who has the slow pairs only is slow."""
    hosts = list(wires.hosts[:4])
    wires.slow(hosts[2], SLOW_KBIT)
    ring = pairing.neighbours(hosts)
    try:
        # In the order in which no host waits for one that waits for it.
        found = gather(wires, hosts, [ring[0], ring[2], ring[1], ring[3]], tmp_path)
    finally:
        wires.heal_all(hosts[2])
    assert all(finding.ok for finding in found), found
    rates = {(each.machine, each.peer): each.value for each in found}
    assert judge(found, 1.5).suspects == (hosts[2],), rates
    assert judge(found).suspects == (), "a crash is not explained by slowness"
    assert max(filter(None, rates.values())) > 100 * min(filter(None, rates.values()))
