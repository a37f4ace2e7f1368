"""Settings of the Slurm driver."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from holdfast.settings import FromEnvironment


class SlurmSettings(FromEnvironment):
    """Read with :func:`holdfast.settings.read`."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_SLURM_")

    options: str = Field(
        "",
        description="More options of sbatch for every machine's allocation, such as `--partition=train "
        "--gres=gpu:8 --time=UNLIMITED`.",
    )
    script: Path | None = Field(
        None, description="Batch script of one machine; empty: the packaged `deployments/slurm/agent.sbatch`."
    )
    python: str = Field(
        "", description="Interpreter on the nodes that has Holdfast; empty: the path of the one in use here."
    )
    job_name: str = Field(
        "", description="Name of our jobs in Slurm, this site's own; empty: `holdfast-` and a hash of HOME."
    )
    start_s: float = Field(
        10.0,
        gt=0,
        description="Seconds that a request for machines waits for their allocations; what Slurm gives later "
        "joins then.",
    )
    kill_s: float = Field(
        30.0,
        gt=0,
        description="Seconds that a node has to end our processes before it is set down as dead.",
    )
    command_s: float = Field(
        15.0,
        gt=0,
        description="Seconds after which one command of Slurm is given up, as of a slurmctld under load (squeue gives "
        "up on a dead one by itself after 9 s).",
    )
    patience_s: float = Field(
        30.0, gt=0, description="Seconds for which a command is repeated while slurmctld does not answer."
    )
