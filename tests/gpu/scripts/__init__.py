"""Programs of processes of their own."""
