"""Holdfast in other people's training loops: one small file per library, imported only where it is used."""
