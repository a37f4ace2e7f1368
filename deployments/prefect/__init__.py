"""What a team's own Prefect server is given."""
