"""Machines and jobs as the gateway sees them, and what it has done to them."""
