"""Where time went: ETTR and lost time."""
