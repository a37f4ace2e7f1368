"""Checkpoints of this machine: memory, peer, disk, upload, and rehearsed restores."""
