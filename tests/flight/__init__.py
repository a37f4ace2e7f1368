"""Flight recordings of real torch runs of parallel layouts, with labels written before they were made."""
