"""Damage inside of a process, where its machine is armed for the demo or a test: wrong products, a flipped bit."""
