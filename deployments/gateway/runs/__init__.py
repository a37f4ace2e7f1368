"""Playbook runs: started, watched, and tried again."""
