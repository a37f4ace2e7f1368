"""The shared models: the lowest layer, imported by all others, importing nothing of ours but itself."""
