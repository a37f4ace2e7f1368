"""Escalation: the next attempt, the acts that need a person, and when to stop."""
