"""Contact with the gateway."""
