"""FSDP2 in processes that may be kept."""

import runpy
from pathlib import Path

import holdfast
from holdfast.session.keep import training_function

training_function.CLOSE_S = 30.0  # a host that is busy with other tests may be long with a copy
holdfast.run(lambda: runpy.run_path(str(Path(__file__).with_name("fsdp.py"))))
