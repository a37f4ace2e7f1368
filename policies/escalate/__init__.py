"""What to try next, what needs a person, and when to stop."""
