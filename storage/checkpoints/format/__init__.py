"""The format of a checkpoint: its plan, its layout, its metadata and its structure."""
