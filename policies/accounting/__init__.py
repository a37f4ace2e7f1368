"""Accounting of time: ETTR and lost time."""
