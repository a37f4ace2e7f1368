"""The policy file: its sections, its defaults and its errors."""
