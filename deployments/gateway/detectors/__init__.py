"""Detectors of what no single agent can see: silent machines, ranks that ended unheard, jobs without progress."""
