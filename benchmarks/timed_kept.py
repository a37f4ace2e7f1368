"""As ``timed_train.py``, in processes that outlive the death of another rank (``holdfast.run``)."""

import runpy
from pathlib import Path

from timed_train import TimedSession

import holdfast

if __name__ == "__main__":
    holdfast.Session = TimedSession  # type: ignore[misc]
    holdfast.run(runpy.run_path(str(Path(__file__).with_name("train_gpt.py")), run_name="example")["main"])
