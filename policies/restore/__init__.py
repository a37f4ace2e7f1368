"""Checkpoints: the one to resume from, the place of copies, and the ones to keep."""
