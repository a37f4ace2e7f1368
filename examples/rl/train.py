"""The trainer: policy gradients over the newest samples, data-parallel, recovered as any job.

Each rank serves the newest weights and takes samples. It trains on the last few thousand that it was sent, so it never
waits for a rollout worker, except for the very first samples.
"""

import argparse
import threading
import time
from collections import deque

import torch
import torch.distributed as dist
from common import packed, policy, serve, unpacked
from torch.nn.parallel import DistributedDataParallel

import holdfast

KEPT, BATCH = 64, 256


class Samples:
    """The newest samples, and the weights that workers ask for."""

    def __init__(self) -> None:
        self.weights = b""
        self.come = threading.Event()
        self._kept: deque[dict[str, torch.Tensor]] = deque(maxlen=KEPT)

    def answer(self, request: bytes) -> bytes:
        if (sent := unpacked(request)) is None:
            return self.weights
        self._kept.append(sent)
        self.come.set()
        return packed(True)

    def batch(self) -> list[torch.Tensor]:
        parts = list(self._kept)
        whole = [torch.cat([part[name] for part in parts]) for name in ("states", "actions", "rewards")]
        chosen = torch.randint(len(whole[0]), (BATCH,))
        return [each[chosen] for each in whole]


def main(steps: int, step_seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session = holdfast.Session()
    model = DistributedDataParallel(policy())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer}
    start = session.restore(state)
    samples = Samples()
    samples.weights = packed(model.module.state_dict())
    serve(samples.answer)
    samples.come.wait()
    for step in range(start + 1, steps + 1):
        time.sleep(step_seconds)  # a larger model would take longer
        states, actions, rewards = samples.batch()
        optimizer.zero_grad()
        chosen = torch.distributions.Categorical(logits=model(states)).log_prob(actions)
        loss = -(chosen * (rewards - rewards.mean())).mean()
        loss.backward()
        optimizer.step()
        samples.weights = packed(model.module.state_dict())
        session.step(step, loss=loss.item())
        session.checkpoint(state)
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: mean reward {rewards.mean():.2f}", flush=True)
    session.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    options = parser.parse_args()
    main(options.steps, options.step_seconds)
