"""A site as its users reach it, from the CLI, the demo and game days: the gateway's client, and a job's code."""
