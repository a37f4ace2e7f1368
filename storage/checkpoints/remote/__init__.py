"""Checkpoints in the object store: written, read, verified, pruned."""
