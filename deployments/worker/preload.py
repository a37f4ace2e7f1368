"""What the fork server imports once, so that no run has to: Prefect's engine and the flow modules.

Importing is all it does: no thread, event loop or client exists in the fork server, so forks are clean.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import anyio._backends._asyncio  # noqa: F401  (else imported by the first event loop of a run)
import prefect.client.orchestration
import prefect.engine
import prefect.events.worker
import prefect.flow_engine
import prefect.flow_runs
import prefect.logging.handlers
import prefect.main
import prefect.task_engine
import prefect.task_runners  # noqa: F401
import websockets  # noqa: F401  (else imported by the first event of a run)

MODULES_VARIABLE = "HOLDFAST_WORKER_PRELOAD"


def load_flows() -> None:
    """Import every module named in the environment; one that fails is reported and left to its own run."""
    for name in filter(None, os.environ.get(MODULES_VARIABLE, "").split(",")):
        try:
            importlib.import_module(name)
        except Exception:
            # The fork server must live: the run of this flow will fail with the same error, in its own log.
            print(f"worker: cannot preload {name}", file=sys.stderr)  # noqa: T201
            traceback.print_exc()


load_flows()
