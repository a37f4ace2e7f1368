"""Stands in for an agent: reports its name, starts children of every awkward kind, and waits."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("machine", "home", "host"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    folder = Path(options.home) / "machines" / options.machine
    children = [
        subprocess.Popen(SLEEP),
        subprocess.Popen(SLEEP, env={"PATH": os.environ["PATH"]}),  # environment cleaned
        subprocess.Popen(SLEEP, start_new_session=True),  # session of its own
    ]
    # An orphan: its parent ends at once.
    subprocess.run(["setsid", "--fork", *SLEEP], check=True)
    card = {
        "pid": os.getpid(),
        "create_time": psutil.Process().create_time(),
        "children": [child.pid for child in children],
    }
    new = folder / "agent.new"
    new.write_text(json.dumps(card))
    os.replace(new, folder / "agent.json")
    time.sleep(600)


main()
