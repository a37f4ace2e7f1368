"""Detectors' rules: hangs, slow machines, silent machines, switches."""
