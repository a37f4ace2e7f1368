"""Writes the files of a new playbook into a repository of its own."""
