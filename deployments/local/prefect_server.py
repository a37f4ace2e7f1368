"""Prefect's server, with its garbage collected in a thread of its own: ``python -m ... server start``.

On SQLite, cursors that became garbage are finalised wherever the collector happens to run. Finalising takes the lock of
the cursor's connection, which that connection's thread holds while it waits for another transaction to end, for up to
a minute. When the collector ran in the event loop's thread, that other transaction could not end: Prefect answered
nobody for that minute. In a thread of its own only the collector waits.
"""

from __future__ import annotations

import gc
import runpy
import threading
import time

YOUNG_EVERY_S = 1.0
ALL_EVERY = 60
"""Every so many rounds old objects are looked at too."""


def collect_aside() -> threading.Thread:
    """Turn automatic collection off in this process; a daemon thread does it from now on."""
    gc.disable()
    thread = threading.Thread(target=_collect, name="garbage", daemon=True)
    thread.start()
    return thread


def _collect() -> None:
    rounds = 0
    while True:
        time.sleep(YOUNG_EVERY_S)
        rounds += 1
        if rounds % ALL_EVERY:
            gc.collect(1)
            continue
        gc.collect()
        if rounds == ALL_EVERY:
            gc.freeze()  # modules and settings: they stay for the server's life


if __name__ == "__main__":
    collect_aside()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
