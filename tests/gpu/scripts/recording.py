"""Record a CUDA graph right after each ``checkpoint``, while its copy is under way."""

from __future__ import annotations

import json

import torch
from torch import nn

from tests.gpu.saving import agent_in_memory, device, say
from tests.session.small import session_of

NBYTES, TENSORS, STEPS = 2 << 30, 8, 8


def main() -> None:
    """Save and record; print the outcomes, and a number that the last graph counted up."""
    model = nn.ParameterList(torch.zeros(NBYTES // TENSORS // 4, device=device()) for _ in range(TENSORS))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    with agent_in_memory() as agent:
        session, state = session_of(agent), {"model": model, "optimizer": optimizer}
        session.restore(state)
        number, graph = torch.zeros(1024, device=device()), torch.cuda.CUDAGraph()
        for step in range(1, STEPS + 1):
            optimizer.step()
            session.step(step)
            session.checkpoint(state)
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # By hand: torch.cuda.graph() waits for the GPU first, and so for the copy.
            with torch.cuda.stream(stream):
                graph.capture_begin()
                while session._saver._outcomes.background.busy:  # until the save has ended
                    number.zero_()
                number.zero_()
                for _ in range(500):
                    number.add_(1.0)
                graph.capture_end()
        graph.replay()
        torch.cuda.synchronize()
        assert session.flush()
        counts = session.counts
        session.close(10)
    outcome = {"saved": counts.saved, "failed": counts.failed, "torn": counts.torn}
    say(json.dumps(outcome | {"number": number[0].item()}))


if __name__ == "__main__":
    main()
