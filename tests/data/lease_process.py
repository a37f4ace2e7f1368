"""Processes of the tests of leases: a server with its journal, and workers that note what was accepted of them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from holdfast import data
from tests.data.files import ids

TOKEN = "a-token-of-sixteen"


def serve(folder: str, journal: str, port: str) -> None:
    book = data.LeaseBook(data.folder(folder), journal=Path(journal), length_s=1.0)
    server = data.LeaseServer(book, TOKEN, port=int(port))
    print(server.url, flush=True)  # noqa: T201
    time.sleep(600)


def work(folder: str, url: str, notes: str, name: str, *options: str) -> None:
    """With a ``gate``: after two batches that were accepted it waits, with a third one read, for that file."""
    pace_s, gate = (*options, "")[:2]
    kept = 0
    splits = data.LeasedSplits(url, TOKEN, data.folder(folder), worker=name, batch=3, poll_s=0.05)
    with Path(notes).open("a", buffering=1) as noted:
        for batch in splits:
            read = " ".join(map(str, ids(batch.rows)))
            key = f"{batch.receipt.split} {batch.receipt.upto}"
            time.sleep(float(pace_s))
            # What is written before the commit counts if the commit was accepted: known from the server at the end.
            noted.write(f"read {batch.receipt.token} {key} {read}\n")
            while gate and kept >= 2 and not Path(gate).exists():
                time.sleep(0.01)
            if splits.commit(batch.receipt):
                kept += 1
                noted.write(f"kept {batch.receipt.token} {key}\n")


if __name__ == "__main__":
    {"serve": serve, "work": work}[sys.argv[1]](*sys.argv[2:])
