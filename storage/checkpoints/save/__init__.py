"""Saves into shared memory."""
