"""One file per change."""
