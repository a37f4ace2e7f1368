"""Decisions, pure: facts in, an answer with its reasons out. No clock, network, Prefect, torch or randomness."""
