"""Loads a checkpoint directory with stock torch alone: ``stock_load.py DIRECTORY OUT``. Not a test."""

import sys
import warnings

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

warnings.simplefilter("ignore")
dcp_to_torch_save(sys.argv[1], sys.argv[2])
loaded = torch.load(sys.argv[2], weights_only=False)
assert loaded
assert not any(name.startswith("holdfast") for name in sys.modules)
