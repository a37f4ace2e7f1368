"""The shared models: the lowest layer, imported by everybody, importing nothing of ours but itself."""
