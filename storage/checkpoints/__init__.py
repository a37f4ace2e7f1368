"""The checkpoint engine."""
