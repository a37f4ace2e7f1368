"""Throughput lost to a save at every step: ``python -m benchmarks.save_throughput FOLDER ROUNDS`` prints JSON.

The example's model at a size whose state is over 256 MiB and whose step takes over half a second. Each round makes
some steps with saves and as many without, in the same process; which comes first changes from round to round.
"""

from __future__ import annotations

import json
import runpy
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.session_cost import session_in

STEPS = 4
LAYERS, WIDTH, CONTEXT, BATCH = 7, 512, 128, 14
EXAMPLE = Path(__file__).parents[1] / "examples" / "train_gpt.py"


def main(folder: Path, rounds: int) -> dict[str, Any]:
    """Percent lost in each round, the step's seconds without saves, the state's bytes, and what the saves did."""
    model: nn.Module = runpy.run_path(str(EXAMPLE))["GPT"](LAYERS, WIDTH, CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    number, lost, plain = 0, [], []
    with session_in(folder) as session:
        session.restore(state)

        def steps(*, save: bool) -> float:
            nonlocal number
            begun = time.perf_counter()
            for _ in range(STEPS):
                number += 1
                _train(model, optimizer)
                session.step(number)
                if save:
                    session.checkpoint(state)
            spent = time.perf_counter() - begun
            session.flush()
            return spent / STEPS

        steps(save=True)
        for turn in range(rounds):
            spent = {save: steps(save=save) for save in ((True, False) if turn % 2 else (False, True))}
            lost.append(100 * (1 - spent[False] / spent[True]))
            plain.append(spent[False])
        return {
            "lost": lost,
            "step_s": statistics.median(plain),
            "state_nbytes": max(path.stat().st_size for path in folder.glob("r*.shard")),
            "saved": session.counts.saved,
            "skipped": session.counts.skipped,
        }


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tokens = torch.randint(256, (BATCH, CONTEXT + 1))
    optimizer.zero_grad()
    cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
