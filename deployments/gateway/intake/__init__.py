"""From alerts to incidents."""
