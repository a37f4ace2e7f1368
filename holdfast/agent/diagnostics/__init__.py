"""Stop-time checks, stacks and flight recordings."""
