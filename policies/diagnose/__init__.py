"""Diagnosis: from findings of checks, stacks, recordings and replays to the machines at fault."""
