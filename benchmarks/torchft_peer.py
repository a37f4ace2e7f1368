"""torchft as it is meant to be used: a lighthouse, and replica groups that are started again when they end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks import peers
from benchmarks.peers import VENV, Peer, PeerRun
from benchmarks.site import STEP_S
from benchmarks.steps import Steps
from tests.e2e.waiting import free_ports

NAME = "torchft"
_LOOK_S = 0.05


class Torchft(Peer):
    """Its launcher is a loop: torchft leaves starting groups again to the scheduler."""

    @contextlib.contextmanager
    def running(self, folder: Path, ranks: int, script: Path, args: tuple[str, ...]) -> Iterator[PeerRun]:
        """Run ``ranks`` groups of one rank each; nothing of it is left afterwards."""
        del args
        base = free_ports(1 + ranks)
        env = peers.environment(folder) | {
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{base}",
            "BENCH_STEP_S": str(STEP_S),
            "BENCH_RANKS": str(ranks),
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
        }
        lighthouse = [str(VENV / "bin" / self.program), "--bind", f"127.0.0.1:{base}", "--min_replicas", "1"]
        python = str(VENV / "bin" / "python")
        train = [python, str(script.with_name("torchft_train.py"))]
        # Each group's store outlives its process, as torchrun's does.
        ports = [str(base + 1 + rank) for rank in range(ranks)]
        stores = [python, str(Path(__file__).with_name("torchft_stores.py")), *ports]
        over = threading.Event()

        def keep(rank: int) -> None:
            mine = env | {"BENCH_RANK": str(rank), "MASTER_PORT": ports[rank]}
            with (folder / "log").open("ab") as log:
                while not over.is_set():
                    group = subprocess.Popen(train, cwd=folder, env=mine, stdout=log, stderr=log)
                    while group.poll() is None and not over.wait(_LOOK_S):
                        pass
                    group.kill()
                    group.wait()

        with (
            peers.process(stores, folder, env),
            peers.process([*lighthouse, "--join_timeout_ms", "1000"], folder, env) as process,
        ):
            keepers = [threading.Thread(target=keep, args=(rank,)) for rank in range(ranks)]
            for each in keepers:
                each.start()
            try:
                yield PeerRun(process, Steps(folder / "steps.jsonl"), folder / "log")
            finally:
                over.set()
                for each in keepers:
                    each.join()


PEER = Torchft(NAME, "torchft_lighthouse")


def available() -> list[Peer]:
    """Nothing when it is not installed, which is printed."""
    if why := PEER.missing:
        print(f"missing peer {why}", file=sys.stderr, flush=True)
        return []
    return [PEER]
