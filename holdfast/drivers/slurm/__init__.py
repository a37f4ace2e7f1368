"""The Slurm driver: every machine is a single-node allocation of its own, led by its agent."""

from holdfast.drivers.slurm.driver import SlurmDriver

__all__ = ["SlurmDriver"]
