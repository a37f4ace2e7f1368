"""Settings: one table, from the environment (``HOLDFAST_*``), then ``.holdfast/settings.env``, then defaults."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from holdfast.errors import SettingsError

HOME_NAME = ".holdfast"


class Settings(BaseSettings):
    """Everything that can be pointed elsewhere. ``docs/settings.md`` is generated from this class."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", extra="ignore", frozen=True)

    home: Path = Field(Path(HOME_NAME), description="Folder that keeps all state of the embedded default.")
    host: str = Field("127.0.0.1", description="Address that the embedded services listen on.")
    port: int = Field(
        4300, ge=1, le=65533, description="Gateway's port; Prefect takes the next, S3 the one after."
    )
    gateway_url: str = Field("", description="Gateway elsewhere; empty: http://HOST:PORT.")
    prefect_api_url: str = Field("", description="An existing Prefect API; empty: the embedded server.")
    work_pool: str = Field("holdfast", description="Prefect work pool of the playbooks.")
    database_url: str = Field(
        "", description="Ledger (SQLAlchemy URL), such as postgresql+psycopg://...; empty: SQLite in HOME."
    )
    s3_endpoint: str = Field("", description="S3 endpoint; empty: the embedded server.")
    s3_bucket: str = Field("holdfast", description="Bucket for checkpoints and code versions.")
    s3_region: str = Field("us-east-1", description="Region that requests are signed for.")
    s3_access_key: str = Field("holdfast", description="Access key.")
    s3_secret_key: SecretStr = Field(
        SecretStr(""), description="Secret key; empty: the content of the secret file (embedded server)."
    )
    secret_file: Path | None = Field(
        None, description="Shared secret of agents and gateway, mode 0600; empty: HOME/secret."
    )
    policy_file: Path | None = Field(
        None, description="Thresholds, ladders and limits; empty: the packaged default.yaml."
    )
    driver: str = Field("local", pattern="^local$", description="Who supplies machines.")
    heartbeat_s: float = Field(0.5, gt=0, le=60, description="Seconds between an agent's heartbeats.")
    kernel_log: str = Field(
        "", description="Kernel log that agents follow; empty: kernel.log in the machine's folder."
    )
    warm_runs: int = Field(2, ge=1, le=64, description="Warm processes that the playbook worker keeps.")
    preload: str = Field(
        "torch,torch.distributed,torch.nn.parallel,torch.optim,torch._dynamo,torch.distributed.checkpoint",
        description="Modules that fork servers load before ranks start, comma separated.",
    )

    @property
    def gateway(self) -> str:
        """Base URL of the gateway."""
        return self.gateway_url.rstrip("/") or f"http://{self.host}:{self.port}"

    @property
    def prefect_api(self) -> str:
        """Prefect API URL."""
        return self.prefect_api_url.rstrip("/") or f"http://{self.host}:{self.port + 1}/api"

    @property
    def s3(self) -> str:
        """S3 endpoint URL."""
        return self.s3_endpoint.rstrip("/") or f"http://{self.host}:{self.port + 2}"

    @property
    def database(self) -> str:
        """SQLAlchemy URL of the ledger."""
        return self.database_url or f"sqlite:///{self.home.resolve() / 'ledger.db'}"

    @property
    def secret_path(self) -> Path:
        """File with the shared secret."""
        return self.secret_file or self.home / "secret"


def find_home(start: Path | None = None) -> Path:
    """The ``.holdfast`` folder of this project: ``HOLDFAST_HOME``, or the nearest above ``start``.

    Raises:
        SettingsError: there is none.
    """
    if named := os.environ.get("HOLDFAST_HOME"):
        return Path(named).resolve()
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / HOME_NAME).is_dir():
            return folder / HOME_NAME
    raise SettingsError(
        f"no {HOME_NAME}/ in {here} or above it: this is not a Holdfast project. "
        "Run `holdfast up` in the project's folder first, or set HOLDFAST_HOME."
    )


def load(home: Path | None = None) -> Settings:
    """Settings of the project whose state lies in ``home`` (default: :func:`find_home`).

    Raises:
        SettingsError: no project, or a value is wrong (named with what was expected).
    """
    folder = home or find_home()
    try:
        # pydantic-settings reads the dotenv file after the environment, so the environment wins.
        return Settings(_env_file=folder / "settings.env", home=folder)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SettingsError(
            f"setting HOLDFAST_{field.upper()} = {first.get('input')!r}: {first['msg']}. See docs/settings.md."
        ) from None
