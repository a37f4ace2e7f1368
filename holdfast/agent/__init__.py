"""The agent, one per machine: starts ranks, watches them and the machine, keeps checkpoints, runs checks."""
