"""Roles of a job: the order of their start, the places of their replicas, and when a replica starts again."""
