"""Machines: spares, offences, flapping, admission and repair."""
