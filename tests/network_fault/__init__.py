"""A port that fails under a real job, seen by the agent's own detectors in the kernel's own counters."""
