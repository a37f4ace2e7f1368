"""Chaos on a real site: faults by a seeded plan while a job trains, and a report of what became of each."""
