"""Runs that are long enough for every fault, and over soon after the last one."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from tests.e2e.site import EXAMPLES, Site

_SLEEP = "        time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began)))\n"
_SLOWLY = """\
        if not os.path.exists(HURRY):
            time.sleep(0.15 if step < args.steps / 2 else 1.0)
"""
SLOW_SECOND_EPOCH = """\
        slow = os.environ["HOLDFAST_EPOCH"] == "2" and not os.path.exists(HURRY)
        time.sleep(2.0 if slow else 0.05)
"""
"""For what is to happen some steps after the second epoch was found to be up, on however busy a host."""


class Paced:
    """A copy of the example in ``code`` that takes its time until :meth:`hurry`.

    From half of its steps on it slows down: on a busy host faults take longer, and are to come before its end.
    """

    def __init__(self, folder: Path, slowly: str = _SLOWLY) -> None:
        self.code = folder / "paced"
        self.code.mkdir()
        self._hurry = folder / "hurry"
        text = (EXAMPLES / "train_gpt.py").read_text()
        assert text.count(_SLEEP) == 1
        self.script = self.code / "train_gpt.py"
        self.script.write_text(text.replace(_SLEEP, slowly.replace("HURRY", repr(str(self._hurry)))))
        kept = "train_gpt_kept.py"
        (self.code / kept).write_text((EXAMPLES / kept).read_text())

    def hurry(self) -> None:
        """From now on steps take as long as they take."""
        self._hurry.touch()


@functools.cache
def calm(site: Site, steps: int, script: str = "train_gpt.py", ranks_per_machine: int = 1) -> str:
    """Return the digest of the weights of a run on two machines that nothing happens to: one run for a site."""
    name = f"calm-{script.partition('.')[0].replace('_', '-')}-{steps}x{os.getpid()}"
    out = site.home.parent / f"{name}.pt"
    site.submit(
        name,
        *("--step-seconds", "0", "--out", str(out)),
        steps=steps,
        script=script,
        ranks_per_machine=ranks_per_machine,
        spare=0,
        first=0,
    )
    site.wait_done(name)
    return digest(out)


def digest(weights: Path) -> str:
    """Return what rank 0 computed over the final weights."""
    import torch  # noqa: PLC0415  (a second that the other tests do not need)

    found: str = torch.load(weights, weights_only=True)["digest"]
    return found
