"""Playbooks: one file per incident class, named after it, and the scheduled flows."""
