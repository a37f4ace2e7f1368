"""The fault hook inside processes of a machine: watches the machine's fault folder (demo and tests only).

Nothing of torch is touched until a fault is there, so that an armed process without a fault computes with the
stock kernels. A fault file is JSON; ``bad-matmul.json`` lasts as long as it exists, and so does ``wrong-bits.json``,
in ranks only: as with hardware that errs on some operands, fixed products are right. ``nan.json`` and ``flip-bit.json``
strike once, in the process of the rank that they name.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

BAD_MATMUL = "bad-matmul.json"
WRONG_BITS = "wrong-bits.json"
NAN = "nan.json"
FLIP_BIT = "flip-bit.json"
WATCH_S = 0.05

ENV_JOB = "HOLDFAST_JOB"
"""Variable that only a rank has (:data:`holdfast.agent.wire.ENV_JOB`)."""

_armed = threading.Lock()


def arm(folder: Path) -> None:
    """Apply what lies in ``folder`` now, and watch it from a daemon thread. Once per process."""
    if not _armed.acquire(blocking=False):
        return
    apply(folder)
    threading.Thread(target=_watch, args=(folder,), name="holdfast-faults", daemon=True).start()


def apply(folder: Path) -> None:
    """Make this process compute as the files in ``folder`` direct."""
    wrong = (folder / BAD_MATMUL).exists()
    slightly = ENV_JOB in os.environ and (folder / WRONG_BITS).exists()
    once = _claim(folder / NAN)
    if _claim(folder / FLIP_BIT):
        from holdfast.damage import weights  # noqa: PLC0415  (loads torch)

        weights.flip_once()
    if not (wrong or slightly or once or _installed()):
        return
    from holdfast.damage import products  # noqa: PLC0415  (loads torch)

    products.set_always(wrong)
    products.set_slightly(slightly)
    if once:
        products.poison_once()


def _watch(folder: Path) -> None:
    while True:
        time.sleep(WATCH_S)
        apply(folder)


def _installed() -> bool:
    import sys  # noqa: PLC0415

    return "holdfast.damage.products" in sys.modules


def _claim(path: Path) -> bool:
    """Return whether the one-shot fault in ``path`` is this process's; taking it removes it, so it strikes once."""
    try:
        rank = json.loads(path.read_text())["rank"]
        if str(rank) != os.environ.get("RANK"):
            return False
        path.unlink()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
