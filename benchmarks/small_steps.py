"""Cost of a save at every step for a job whose steps are short: each rank alternates steps with saves and without.

Run as a job's script beside ``train_gpt.py`` and ``timed_train.py``: rank 0 writes JSON to ``BENCH_STEPS`` with the
suffix ``.result``. The steps compute all the time, so that whatever the saves do beside them takes its share of the
processors from them; with ``BENCH_IDLE_S`` they leave the processors alone for so long, as steps on a GPU do.
"""

import json
import os
import statistics
import time
from pathlib import Path

import torch
from timed_train import TimedSession
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from train_gpt import GPT

LAYERS, WIDTH, CONTEXT = 2, 64, 64
BATCH = int(os.environ.get("BENCH_BATCH", "8"))
IDLE_S = float(os.environ.get("BENCH_IDLE_S", "0"))
"""Part of a step in which the host has nothing to do, as while a GPU computes."""
STEPS, WARM = int(os.environ.get("BENCH_BLOCK", "25")), 30
"""With saves or without, one block after the other; and at first."""
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "6"))


def main() -> None:
    """Alternate blocks of steps, and write down what each step took and for how long the saves held it up."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT(LAYERS, WIDTH, CONTEXT))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    session = TimedSession()
    step = session.restore(state)
    held_s = 0.0

    def steps(count: int, *, save: bool) -> float:
        """Seconds per step."""
        nonlocal step, held_s
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            step += 1
            tokens = torch.randint(256, (BATCH, CONTEXT + 1))
            optimizer.zero_grad()
            cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            time.sleep(IDLE_S)
            at = time.perf_counter()
            session.wait()
            held_s += time.perf_counter() - at
            optimizer.step()
            session.step(step)
            if save:
                at = time.perf_counter()
                session.checkpoint(state)
                held_s += time.perf_counter() - at
        dist.barrier()
        return (time.perf_counter() - begun) / count

    steps(WARM, save=True)
    lost, held, plain = [], [], []
    for turn in range(ROUNDS):
        held_s, spent = 0.0, {}
        for save in (True, False) if turn % 2 else (False, True):
            spent[save] = steps(STEPS, save=save)
            session.flush()
        lost.append(100 * (1 - spent[False] / spent[True]))
        held.append(100 * held_s / STEPS / spent[True])
        plain.append(spent[False])
    if dist.get_rank() == 0:
        found = {
            "lost": lost,
            "held": held,
            "step_s": statistics.median(plain),
            "saved": session.counts.saved,
            "common": session.counts.common,
            "skipped": session.counts.skipped,
        }
        out = Path(os.environ["BENCH_STEPS"]).with_suffix(".result")
        out.with_suffix(".new").write_text(json.dumps(found))
        out.with_suffix(".new").rename(out)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
