"""A job whose ranks read leased splits: rank 0 has the book, in its state; every sample that counts is noted."""

import os
import queue
import secrets
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast
from holdfast import data

BATCH = 2


def option(name: str) -> str:
    return sys.argv[sys.argv.index(f"--{name}") + 1]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session, rank = holdfast.Session(), dist.get_rank()
    source = data.folder(Path(option("data")), shuffle=20)
    token = secrets.token_hex()
    server = data.LeaseServer(data.LeaseBook(source), token) if rank == 0 else None
    model = torch.nn.Linear(1, 1)
    state = {"model": model, "leases": data.lease_part(server.book if server else None)}
    step = session.restore(state)
    shared = [server.url, token] if server else [None, None]
    dist.broadcast_object_list(shared)
    worker = f"e{os.environ['HOLDFAST_EPOCH']}-r{rank}-{os.getpid()}"
    splits = data.LeasedSplits(*shared, source, worker=worker, batch=BATCH, poll_s=0.05)
    ready: queue.Queue[data.LeasedRows] = queue.Queue(2)  # read ahead of what is committed
    threading.Thread(target=lambda: [ready.put(each) for each in splits], daemon=True).start()
    hurry = Path(option("notes")) / "hurry"
    notes = hurry.with_name(f"e{os.environ['HOLDFAST_EPOCH']}-r{rank}.txt")
    with notes.open("a", buffering=1) as noted:
        while True:
            over = torch.tensor(float(server.book.done) if server else 0.0)
            dist.all_reduce(over)
            if over:
                break
            step += 1
            if not hurry.exists():
                time.sleep(0.2 if step < 60 else 1.0)  # as Paced does
            ids = []
            if not ready.empty():
                batch = ready.get()
                ids = [row["id"] for row in batch.rows] if splits.commit(batch.receipt) else []
            dist.barrier()  # the position that is saved with this step has the commits of all ranks
            with torch.no_grad():
                model.weight.add_(sum(ids))
            dist.all_reduce(model.weight.data)
            session.step(step, loss=1.0)
            noted.write(f"{step} {' '.join(map(str, ids))}\n")
            session.checkpoint(state)
    dist.barrier()


if __name__ == "__main__":
    main()
