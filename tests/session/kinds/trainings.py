"""Kinds of trainings: modules, optimizers, schedulers and what else has a state, and a step of each.

Each entry makes the fresh objects, as a script does that starts again, and a step that may change more than numbers.
"""

from tests.session.kinds import habits, modules, optimizers, schedulers

TRAININGS = [*optimizers.TRAININGS, *schedulers.TRAININGS, *modules.TRAININGS, *habits.TRAININGS]
