"""Simulation of months of a large job in seconds, under the policies that run in production."""
