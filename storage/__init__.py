"""What must survive: checkpoints, the ledger, code versions."""
