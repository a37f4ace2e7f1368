"""Modules that the fork server imports once, so that no run has to: Prefect's engine and the flow modules.

Importing is all it does: no thread, event loop or client exists in the fork server, so forks are clean.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  (this and some below are else imported in the middle of a run)
import importlib
import os
import ssl
import sys
import traceback
from functools import cache
from typing import Any

import anyio._backends._asyncio  # noqa: F401
import certifi
import prefect._internal.observers
import prefect.client.orchestration
import prefect.engine
import prefect.events.worker
import prefect.flow_engine
import prefect.flow_runs
import prefect.logging.handlers
import prefect.main
import prefect.task_engine
import prefect.task_runners
import prefect.utilities.visualization  # noqa: F401
import rich._emoji_codes  # noqa: F401
import websockets  # noqa: F401

import holdfast.agent.transport
import holdfast.drivers.local
import holdfast.storage.objects.s3  # noqa: F401
from holdfast.policies.config.policy import Policy

MODULES_VARIABLE = "HOLDFAST_WORKER_PRELOAD"


def load_flows() -> None:
    """Import every module named in the environment; one that fails is reported and left to its own run."""
    for name in filter(None, os.environ.get(MODULES_VARIABLE, "").split(",")):
        try:
            importlib.import_module(name)
        except Exception:
            # The fork server must survive: the run of this flow will fail with the same error, in its own log.
            print(f"worker: cannot preload {name}", file=sys.stderr)  # noqa: T201
            traceback.print_exc()


def share_certificates() -> None:
    """Let all clients of a process share one TLS context per certificate file, loaded before the fork.

    Each HTTP client loads the whole bundle again, also for ``http://``: 20 ms on an idle core, and a run makes
    five clients before its second step.
    """
    make, shared = ssl.create_default_context, cache(ssl.create_default_context)

    def create_default_context(*args: Any, **options: Any) -> ssl.SSLContext:
        only_file = not args and set(options) == {"cafile"}
        return shared(**options) if only_file else make(*args, **options)

    ssl.create_default_context = create_default_context
    ssl.create_default_context(cafile=certifi.where())


share_certificates()
load_flows()
Policy.load()  # the packaged one, which is read once: that of the site is changes to it
