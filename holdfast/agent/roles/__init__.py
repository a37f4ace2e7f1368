"""Replicas of jobs' roles on this machine: started, restarted one by one, and reachable by the others."""
