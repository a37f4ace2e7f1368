"""Which checkpoint to resume from, where copies go, and which are kept."""
