"""FSDP2 in processes that may be kept."""

import runpy
from pathlib import Path

import holdfast

holdfast.run(lambda: runpy.run_path(str(Path(__file__).with_name("fsdp.py"))))
