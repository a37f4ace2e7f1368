"""Measurements of what Holdfast promises, beside other launchers: ``make bench``, ``make bench-quick``."""
