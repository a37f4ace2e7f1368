"""The nemesis: a whole site in one process under a seeded scheduler, with faults of every kind, checked by invariants.

``python -m tests.nemesis --seed N`` plays one seed and prints its history; see ``__main__``.
"""
