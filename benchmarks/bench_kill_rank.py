"""SIGKILL of one rank to the next new step, beside launchers that restart the job."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import breakdown, peers
from benchmarks.peers import Peer
from benchmarks.site import RECOVER_S, START_S, TRAIN_ARGS, Site
from benchmarks.steps import TooLateError
from benchmarks.table import Row

LAYOUTS = {8: (4, 2), 2: (2, 1)}
"""Ranks -> machines, ranks per machine."""
NOTES = (
    "kill of a rank: every launcher runs the same script and arguments on this host. Holdfast diagnoses in its three "
    "default tiers and resumes from memory beyond all steps done; torchrun, ft_launcher and dlrover-run diagnose "
    "nothing, have no checkpoint in memory, and are timed to the first step of the restarted job (monitor interval "
    "0.1 s). Holdfast's idle services and machines stay up while they run.",
)


def run(site: Site, n: int) -> list[Row]:
    """One row for 8 ranks and one for 2; all launchers take turns in each round."""
    here = peers.available()
    return [_layout(site, n, ranks, here) for ranks in LAYOUTS]


def _layout(site: Site, n: int, ranks: int, here: Sequence[Peer]) -> Row:
    ours: list[float] = []
    spans: list[breakdown.Spans] = []
    failed: list[str] = []
    theirs: dict[str, list[float]] = {peer.name: [] for peer in peers.PEERS}
    for turn in range(n):
        seconds, where = recover(site, ranks)
        ours.append(seconds)
        spans.append(where)
        for peer in here:
            try:
                theirs[peer.name].append(restart(site, peer, ranks))
            except TooLateError as error:
                failed.append(
                    f"{peer.name}, {ranks} ranks, run {turn + 1}: did not come back: {str(error)[:300]}"
                )
                print(f"  {failed[-1]}", flush=True)
        peer_times = ", ".join(f"{name} {found[-1]:.2f}" for name, found in theirs.items() if found)
        print(f"  kill, {ranks} ranks, {turn + 1}/{n}: holdfast {ours[-1]:.2f}, {peer_times} s", flush=True)
    where = breakdown.median(spans)
    print(breakdown.text(where), flush=True)
    return Row(
        what=f"SIGKILL of a rank to the next new step, {ranks} ranks",
        unit="s",
        samples=ours,
        target=2.0 if ranks == 8 else None,
        peers=theirs,
        ratio_target=0.25 if ranks == 8 else 0.5,
        notes=NOTES,
        details={"breakdown": where, "peers that did not come back": failed},
    )


def recover(site: Site, ranks: int) -> tuple[float, breakdown.Spans]:
    """Seconds that Holdfast took, and where they went."""
    with site.job(*LAYOUTS[ranks]) as job:
        at = job.steps.kill(ranks - 1)
        new = job.steps.wait_for_new(at, RECOVER_S, job.why_dead, beyond=True)
        return new - at, breakdown.of(job.closed_incident(), at, new)


def restart(site: Site, peer: Peer, ranks: int) -> float:
    """Seconds that ``peer`` took."""
    with peer.running(site.folder(), ranks, site.code / "timed_train.py", TRAIN_ARGS) as run:
        run.steps.wait_for_calm(ranks, START_S, run.why_dead)
        at = run.steps.kill(ranks - 1)
        return run.steps.wait_for_new(at, RECOVER_S, run.why_dead, beyond=False) - at
