"""Changes of the ledger's tables, one file each: alembic runs them, in order, when the ledger is opened to be made."""
