"""HTTP routes, and what every request passes first."""
