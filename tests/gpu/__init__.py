"""On a machine with an NVIDIA GPU; skipped elsewhere: `make test-gpu`."""
