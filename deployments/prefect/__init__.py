"""Configuration of a team's own Prefect server."""
