"""Times saves of one contestant: ``python save_contestant.py NAME FOLDER N [cpu|cuda]`` prints a line of JSON.

Run as a file, by the Python of whichever virtual environment has the contestant. A save blocks training in its call,
and again before the optimizer's step until the parameters may change. ``alone``: with nothing in between.
``overlapped``: with a forward and backward in between that takes :data:`COMPUTE` times the plain copy. Of a state on
a GPU the plain copy goes to pinned memory, and a save blocks until the GPU itself may change the parameters.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

NBYTES, TENSORS = 1 << 30, 64
COMPUTE = 3.0
WARM_UP = 3

Wait = Callable[[], object]
Save = Callable[[int], Wait]


class Model(nn.Module):
    """A state of ``NBYTES``, updated by SGD: no optimizer state beside it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        numbers = NBYTES // TENSORS // 4
        self.parts = nn.ParameterList(torch.full((numbers,), 1.0, device=device) for _ in range(TENSORS))


@contextlib.contextmanager
def holdfast_session(model: Model, folder: Path) -> Iterator[Save]:
    """Ours, under a process that takes the messages for an agent."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.session_cost import session_in  # noqa: PLC0415

    with session_in(folder) as session:
        state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
        session.restore(state)

        def save(step: int) -> Wait:
            session.step(step)
            session.checkpoint(state, overlap="all")  # no optimizer steps here
            return session.wait

        save.settle = session.flush  # type: ignore[attr-defined]
        yield save


@contextlib.contextmanager
def dcp_save(model: Model, folder: Path) -> Iterator[Save]:
    """torch.distributed.checkpoint.save into shared memory."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415

    def save(step: int) -> Wait:
        dcp.save({"model": model.state_dict()}, checkpoint_id=folder / str(step % 2))
        return lambda: None

    yield save


@contextlib.contextmanager
def dcp_async_save(model: Model, folder: Path) -> Iterator[Save]:
    """torch.distributed.checkpoint.async_save with its quickest stager."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # noqa: PLC0415

    pinned = torch.cuda.is_available()
    options = StagingOptions(
        use_pinned_memory=pinned, use_shared_memory=True, use_async_staging=True, use_non_blocking_copy=pinned
    )
    stager = DefaultStager(options)
    last: list[Any] = []

    def save(step: int) -> Wait:
        asked = dcp.async_save(
            {"model": model.state_dict()}, checkpoint_id=folder / str(step % 2), async_stager=stager
        )
        last[:] = [asked]
        return asked.staging_completion.result  # type: ignore[union-attr]

    save.settle = lambda: last[0].upload_completion.result()  # type: ignore[attr-defined]  # noqa: PLW0108
    yield save
    stager.close()


@contextlib.contextmanager
def bytecheckpoint(model: Model, folder: Path) -> Iterator[Save]:
    """ByteCheckpoint's fast saving."""
    import bytecheckpoint as bcp  # type: ignore[import-not-found]  # noqa: PLC0415

    def save(step: int) -> Wait:
        bcp.save(str(folder / str(step % 2)), {"model": model}, framework="ddp", fast_saving=True)
        return lambda: None

    yield save


@contextlib.contextmanager
def nvrx(model: Model, folder: Path) -> Iterator[Save]:
    """NVRx's local checkpoint into shared memory, asynchronous."""
    from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue  # type: ignore # noqa: PLC0415
    from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import (  # type: ignore # noqa: PLC0415
        BasicTensorAwareStateDict,
    )
    from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (  # type: ignore # noqa: PLC0415
        LocalCheckpointManager,
    )

    manager = LocalCheckpointManager(folder)
    queue = AsyncCallsQueue(persistent=False)

    def save(step: int) -> Wait:
        request = manager.save(BasicTensorAwareStateDict(dict(model.state_dict())), step, is_async=True)
        queue.schedule_async_request(request)
        return lambda: None  # it forked: parameters may change

    save.settle = lambda: queue.maybe_finalize_async_calls(blocking=True)  # type: ignore[attr-defined]
    yield save


@contextlib.contextmanager
def dlrover(model: Model, folder: Path) -> Iterator[Save]:
    """DLRover's flash checkpoint into memory."""
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType  # type: ignore # noqa: PLC0415

    checkpointer = DdpCheckpointer(str(folder))

    def save(step: int) -> Wait:
        checkpointer.save_checkpoint(step, {"model": model.state_dict()}, storage_type=StorageType.MEMORY)
        return lambda: None

    try:
        yield save
    finally:  # it leaves a process and a segment of shared memory
        if checkpointer._engine.saver_proc is not None:
            checkpointer._engine.saver_proc.kill()
        Path("/dev/shm/ckpt_shm_0").unlink(missing_ok=True)


CONTESTANTS: dict[str, Callable[[Model, Path], contextlib.AbstractContextManager[Save]]] = {
    "holdfast": holdfast_session,
    "dcp.save": dcp_save,
    "dcp.async_save": dcp_async_save,
    "bytecheckpoint": bytecheckpoint,
    "NVRx local": nvrx,
    "DLRover flash": dlrover,
}


def measure(name: str, folder: Path, n: int, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of a plain warm copy, and blocked by a save, in turn."""
    on_gpu = device.type == "cuda"
    model = Model(device)
    sources = [part.detach() for part in model.parts]
    targets = [torch.ones(part.shape, pin_memory=on_gpu) for part in sources]

    def finish() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    def copy() -> float:
        begun = time.perf_counter()
        for target, source in zip(targets, sources, strict=True) if on_gpu else ():
            target.copy_(source, non_blocking=True)
        finish()
        if not on_gpu:
            torch._foreach_copy_(targets, sources)
        return time.perf_counter() - begun

    one = torch.rand(512, 512, device=device)
    found: dict[str, list[float]] = {"copy": [], "alone": [], "overlapped": [], "call": []}
    with CONTESTANTS[name](model, folder) as save:
        settle = getattr(save, "settle", lambda: None)
        for step in range(1, WARM_UP + n + 1):
            copied = copy()
            begun = time.perf_counter()
            save(2 * step)()
            finish()
            alone = time.perf_counter() - begun
            settle()
            begun = time.perf_counter()
            wait = save(2 * step + 1)
            called = time.perf_counter()
            while time.perf_counter() - called < COMPUTE * copied:
                one @ one
                if on_gpu:
                    torch.cuda.current_stream().synchronize()
            computed = time.perf_counter()
            wait()
            finish()
            waited = time.perf_counter() - computed
            settle()
            if step > WARM_UP:
                found["copy"].append(1000 * copied)
                found["alone"].append(1000 * alone)
                found["overlapped"].append(1000 * (called - begun + waited))
                found["call"].append(1000 * (called - begun))
    return found


def main() -> None:
    """Measure and print."""
    name, folder, n = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if name != "holdfast":
        import torch.distributed as dist  # noqa: PLC0415

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = measure(name, folder, n, torch.device(sys.argv[4] if len(sys.argv) > 4 else "cpu"))
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)  # whatever threads and processes a contestant leaves


if __name__ == "__main__":
    main()
