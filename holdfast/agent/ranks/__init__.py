"""Rank processes: from the job's code to the last process of an epoch."""
