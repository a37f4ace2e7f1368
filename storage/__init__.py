"""Durable state: checkpoints, the ledger, code versions."""
