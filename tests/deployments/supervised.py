"""A supervisor of toy services, as a process: ``python -m tests.deployments.supervised HOME``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from holdfast.deployments.local import pidfile
from holdfast.deployments.local.services import Service
from holdfast.deployments.local.supervisor import NAME, supervise
from holdfast.paths import log_dir

SLEEPER = "import time; print('up', flush=True); time.sleep(1000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER

if __name__ == "__main__":
    home = Path(sys.argv[1])
    log_dir(home).mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=log_dir(home) / "supervisor.log", level=logging.INFO)
    services = [
        Service("first", (sys.executable, "-c", SLEEPER)),
        Service("second", (sys.executable, "-c", SLEEPER)),
        *([Service("stubborn", (sys.executable, "-c", STUBBORN))] if "stubborn" in sys.argv else []),
        *([Service("missing", ("/no/such/program",))] if "missing" in sys.argv else []),
    ]
    pidfile.write(home, NAME, os.getpid())
    asyncio.run(supervise(services, home))
