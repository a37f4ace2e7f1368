"""Settings, from the environment (``HOLDFAST_*``), then ``.holdfast/settings.env``, then defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self, TypeVar
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from holdfast import redact
from holdfast.errors import SettingsError
from holdfast.from_environment import FromEnvironment
from holdfast.listen import authority
from holdfast.models import location

__all__ = ["HOME_NAME", "FromEnvironment", "Settings", "find_home", "load", "read"]

HOME_NAME = ".holdfast"

Kind = TypeVar("Kind", bound="FromEnvironment")


class Settings(FromEnvironment):
    """Settings of every site: all that can be pointed elsewhere. ``docs/settings.md`` is generated from this class
    and those that drivers declare."""

    home: Path = Field(Path(HOME_NAME), description="Folder that keeps all state of the embedded default.")
    host: str = Field("127.0.0.1", description="Address that the embedded services listen on.")
    port: int = Field(
        4300, ge=1, le=65533, description="Gateway's port; Prefect takes the next, S3 the one after."
    )
    gateway_url: str = Field(
        "",
        description="Gateway elsewhere; several with commas between, of which one leads; empty: http://HOST:PORT.",
    )
    page_url: str = Field(
        "",
        description="Address at which browsers reach the gateway, for links to the status page, where a proxy or "
        "tunnel gives it another one, such as https://holdfast.example; empty: the (first) gateway's.",
    )
    prefect_api_url: str = Field("", description="An existing Prefect API; empty: the embedded server.")
    prefect_ui_url: str = Field(
        "",
        description="Address at which browsers reach the Prefect UI, where a proxy or tunnel gives it another one, "
        "such as https://prefect.example; empty: that of the API.",
    )
    prefect_auth: SecretStr = Field(
        SecretStr(""),
        description="USER:PASSWORD of a Prefect API with basic authentication; the embedded server asks for it then.",
    )
    prefect_auth_file: Path | None = Field(
        None,
        description="File with it instead, mode 0600; empty: of the embedded server HOME/prefect-auth, which "
        "`holdfast up` makes.",
    )
    prefect_database_url: str = Field(
        "",
        description="Database of the embedded Prefect server, such as postgresql+asyncpg://...; empty: SQLite in HOME.",
    )
    work_pool: str = Field("holdfast", description="Prefect work pool of the playbooks.")
    database_url: str = Field(
        "", description="Ledger (SQLAlchemy URL), such as postgresql+psycopg://...; empty: SQLite in HOME."
    )
    store: str = Field(
        "",
        description="Store of checkpoints and code versions, as a URL: its scheme is `s3` or one that a package "
        "brings, such as `acme://place`; empty: `s3://BUCKET`.",
    )
    s3_endpoint: str = Field("", description="S3 endpoint; empty: the embedded server.")
    s3_bucket: str = Field(
        "holdfast", description="Bucket for checkpoints and code versions, where `HOLDFAST_STORE` names none."
    )
    s3_region: str = Field("us-east-1", description="Region that requests are signed for.")
    s3_addressing: Literal["path", "virtual"] = Field(
        "path",
        description="How requests name the bucket: `path` (`https://HOST/BUCKET`), or `virtual` "
        "(`https://BUCKET.HOST`), which some stores know alone.",
    )
    s3_credentials: Literal["keys", "aws"] = Field(
        "keys",
        description="Where credentials come from: `keys`, the three settings that follow, or `aws`, what the AWS SDKs "
        "find and renew in each process: `AWS_*` variables, `~/.aws`, a Kubernetes service account (IRSA, Pod "
        "Identity), the instance's role.",
    )
    s3_access_key: str = Field("holdfast", description="Access key.")
    s3_secret_key: SecretStr = Field(
        SecretStr(""),
        description="Secret key; empty: the content of HOME/s3-secret, or the shared secret (embedded server).",
    )
    s3_session_token: SecretStr = Field(
        SecretStr(""),
        description="Session token of temporary keys (AWS STS); empty: the keys are lasting ones.",
    )
    s3_object_mib: int = Field(
        64,
        ge=1,
        le=4096,
        description="A rank's part of a checkpoint is split into objects of at least this many MiB; one whose "
        "content did not change is not uploaded again.",
    )
    s3_upload_s: float = Field(
        600.0,
        gt=0,
        description="Seconds after which the upload of a rank's part of a checkpoint is given up.",
    )
    s3_parts_s: float = Field(
        120.0, gt=0, description="Seconds that rank 0's machine waits for the other ranks' parts."
    )
    s3_tidy_s: float = Field(
        600.0, gt=0, description="Seconds between two looks for checkpoints and garbage to delete from S3."
    )
    s3_read_s: float = Field(
        20.0,
        gt=0,
        description="Seconds of silence after which a request to the object store is given up, and tried again.",
    )
    disk_mib: int = Field(
        65536,
        ge=0,
        description="Most that shards may take on a machine's disk; what does not fit is left out.",
    )
    first_tier_dir: Path | None = Field(
        None,
        description="Folder on a machine's local NVMe disk, for jobs with `checkpoint.first_tier: disk`; empty: such "
        "jobs are refused.",
    )
    secret_file: Path | None = Field(
        None, description="Shared secret of agents and gateway, mode 0600; empty: HOME/secret."
    )
    shared_secret: SecretStr = Field(
        SecretStr(""), description="The shared secret itself, instead of a file; changes with a restart only."
    )
    secrets_dir: Path | None = Field(
        None,
        description="Folder with one file per setting (`holdfast_database_url`, ...), such as a mounted Kubernetes "
        "secret; the environment and `settings.env` win.",
    )
    tls_cert: Path | None = Field(
        None,
        description="Certificate (PEM, with its chain) that gateway and agents serve TLS with; empty: no TLS.",
    )
    tls_key: Path | None = Field(None, description="Its key, unencrypted, mode 0600.")
    tls_ca: Path | None = Field(
        None,
        description="Authority that gateway and agents must be certified by; set, they are called by TLS only.",
    )
    tls_agent_name: str = Field(
        "", description="Name that every agent's certificate carries; empty: the address that it listens on."
    )
    allow_plaintext: bool = Field(
        False,
        description="`true`: gateway, agents and the embedded Prefect server may listen on addresses other than "
        "loopback without TLS, on a network that you trust.",
    )
    policy_file: Path | None = Field(
        None, description="Thresholds, ladders and limits; empty: the packaged default.yaml."
    )
    location: str = Field(
        "",
        description="Failure domains of an agent's machine, nearest first, such as `nvlink=n7,switch=leaf-3,rack=r12`; "
        "empty: Slurm's `SLURM_TOPOLOGY_ADDR` where it is set.",
    )
    driver: str = Field(
        "local",
        description="Who supplies machines: `local`, `slurm`, `kubernetes`, or a driver of another package by its "
        "name.",
    )
    chaos_allowed: bool | None = Field(
        None,
        description="Whether `holdfast chaos` may break things here; empty: with the local driver only.",
    )
    ticket_webhook: SecretStr = Field(
        SecretStr(""),
        description="Address that a ticket is posted to when a machine needs manual repair; empty: its run reports it.",
    )
    cloud_notices: Literal["", "ec2", "gce", "azure"] = Field(
        "",
        description="Cloud whose metadata service agents ask for notices (maintenance, preemption); empty: none.",
    )
    cloud_metadata_url: str = Field(
        "", description="That service elsewhere, such as http://10.0.0.1; empty: the cloud's usual address."
    )
    alerts_days: float = Field(
        90.0,
        gt=0,
        description="Days for which alerts that led to no incident are kept; incidents are kept for good.",
    )
    login_h: float = Field(12.0, gt=0, description="Hours for which a login of the status page holds.")
    up_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that `holdfast up` waits for its services, as on a busy host; twice as long for machines.",
    )
    heartbeat_s: float = Field(0.5, gt=0, le=60, description="Seconds between an agent's heartbeats.")
    kernel_log: str = Field(
        "",
        description="Kernel log that agents follow; empty: /dev/kmsg, with the local driver the machine's kernel.log.",
    )
    warm_runs: int = Field(2, ge=1, le=64, description="Warm processes that the playbook worker keeps.")
    preload: str = Field(
        "torch,torch.distributed,torch.nn.parallel,torch.optim,torch._dynamo,torch.distributed.checkpoint",
        description="Modules that fork servers load before ranks start, comma separated.",
    )

    @field_validator("home")
    @classmethod
    def _home_can_be_written_down(cls, value: Path) -> Path:
        try:
            str(value.resolve()).encode()
        except UnicodeEncodeError:
            raise ValueError(
                "its path has characters that Python cannot read in this locale: set PYTHONUTF8=1 or LC_ALL=C.UTF-8"
            ) from None
        return value

    @field_validator("host")
    @classmethod
    def _host_without_brackets(cls, value: str) -> str:
        return value[1:-1] if value.startswith("[") and value.endswith("]") else value

    @field_validator("store")
    @classmethod
    def _store_is_a_url(cls, value: str) -> str:
        where = urlsplit(value)
        if value and not (where.scheme and (where.netloc or where.path.strip("/"))):
            raise ValueError("expected SCHEME://PLACE, such as s3://bucket")
        if where.scheme == "s3" and (where.path.strip("/") or not where.netloc):
            raise ValueError("expected s3://BUCKET: Holdfast uses a bucket as a whole")
        return value

    @field_validator(
        "gateway_url", "page_url", "prefect_api_url", "prefect_ui_url", "s3_endpoint", "cloud_metadata_url"
    )
    @classmethod
    def _addresses_have_a_scheme(cls, value: str) -> str:
        for each in filter(None, map(str.strip, value.split(","))):
            where = urlsplit(each)
            if where.scheme not in ("http", "https") or not where.netloc:
                raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
        return value

    @model_validator(mode="after")
    def _credentials_belong_to_a_store(self) -> Self:
        if self.s3_credentials == "aws" and self.embedded_s3:
            raise ValueError(
                "HOLDFAST_S3_CREDENTIALS=aws needs HOLDFAST_S3_ENDPOINT, such as "
                "https://s3.eu-central-1.amazonaws.com: the embedded server has a key of its own"
            )
        given = self.s3_secret_key.get_secret_value() or self.s3_session_token.get_secret_value()
        if self.s3_credentials == "aws" and given:
            raise ValueError(
                "HOLDFAST_S3_CREDENTIALS=aws and HOLDFAST_S3_SECRET_KEY or HOLDFAST_S3_SESSION_TOKEN: expected one of "
                "them; unset the keys, or HOLDFAST_S3_CREDENTIALS"
            )
        return self

    @field_validator("location")
    @classmethod
    def _location_can_be_read(cls, value: str) -> str:
        location.parse(value)
        return value

    @property
    def preload_modules(self) -> tuple[str, ...]:
        """Names of the modules that fork servers load before ranks start."""
        return tuple(name.strip() for name in self.preload.split(",") if name.strip())

    @property
    def gateways(self) -> tuple[str, ...]:
        """Base URLs of all gateways; a client that is refused by one on standby asks the next."""
        named = tuple(url.strip().rstrip("/") for url in self.gateway_url.split(",") if url.strip())
        return named or (self.own_gateway,)

    @property
    def gateway(self) -> str:
        """Base URL of the (first) gateway."""
        return self.gateways[0]

    @property
    def page(self) -> str:
        """Address of the status page, for people's browsers."""
        return redact.page(self.page_url or self.gateway)

    @property
    def own_gateway(self) -> str:
        """Base URL of the gateway that these settings start."""
        return self._own_origin(self.port)

    def _own_origin(self, port: int) -> str:
        """Origin of what these settings start, apart from S3."""
        # What listens everywhere is called at an address that a certificate can carry.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{'https' if self.tls_ca else 'http'}://{authority(host, port)}"

    @property
    def prefect_api(self) -> str:
        """Prefect API URL."""
        return self.prefect_api_url.rstrip("/") or f"{self._own_origin(self.port + 1)}/api"

    @property
    def prefect_ui(self) -> str:
        """Address of the Prefect UI, for people's browsers."""
        return self.prefect_ui_url.rstrip("/") or self.prefect_api.removesuffix("/api")

    @property
    def prefect_auth_path(self) -> Path | None:
        """File with the Prefect API's USER:PASSWORD; None: the API is elsewhere, and no file is configured."""
        return self.prefect_auth_file or (None if self.prefect_api_url else self.home / "prefect-auth")

    @property
    def s3(self) -> str:
        """S3 endpoint URL."""
        return self.s3_endpoint.rstrip("/") or f"http://{authority(self.host, self.port + 2)}"

    @property
    def store_url(self) -> str:
        """URL of the store of checkpoints and code versions; its scheme names the kind of store."""
        return (self.store or f"s3://{self.s3_bucket}").rstrip("/")

    @property
    def bucket(self) -> str:
        """Name of the bucket of checkpoints and code versions."""
        return urlsplit(self.store_url).netloc

    @property
    def stored_in_s3(self) -> bool:
        """Whether the store of checkpoints is S3, here or elsewhere."""
        return urlsplit(self.store_url).scheme == "s3"

    @property
    def embedded_s3(self) -> bool:
        """Whether checkpoints are in an S3 server that these settings start."""
        return self.stored_in_s3 and not self.s3_endpoint

    @property
    def database(self) -> str:
        """SQLAlchemy URL of the ledger."""
        return self.database_url or f"sqlite:///{self.home.resolve() / 'ledger.db'}"

    @property
    def s3_secret_path(self) -> Path:
        """File with the embedded S3 server's key; with machines elsewhere there is none: the shared secret."""
        own = self.home / "s3-secret"
        return own if own.exists() else self.secret_path

    @property
    def secret_path(self) -> Path:
        """File with the shared secret."""
        return self.secret_file or self.home / "secret"


def find_home(start: Path | None = None) -> Path:
    """Return the ``.holdfast`` folder of this project: ``HOLDFAST_HOME``, or the nearest above ``start``.

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
    """Load the settings of the project whose state lies in ``home`` (default: :func:`find_home`).

    Raises:
        SettingsError: no project, or a value is wrong (named with what was expected).
    """
    folder = home or find_home()
    from holdfast import plugins  # noqa: PLC0415  (it imports the models)

    for kind in plugins.own_settings().values():
        read(kind, folder)
    return read(Settings, folder, home=folder)


def read(kind: type[Kind], folder: Path, /, **given: object) -> Kind:
    """Return settings of ``kind`` of the project whose state lies in ``folder``: how a driver reads its own.

    Args:
        kind: a class with a prefix of its own, such as ``HOLDFAST_SLURM_``.
        folder: ``home`` of :class:`Settings`.
        given: values that count more than any other.

    Raises:
        SettingsError: a value is wrong (named with what was expected).
    """
    try:
        # pydantic-settings reads the dotenv file after the environment, so the environment wins.
        return kind(_env_file=folder / "settings.env", _secrets_dir=_secrets(folder), **given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        if not first[
            "loc"
        ]:  # of several together; the message names them, the input is all values, secrets too
            why = first["msg"].removeprefix("Value error, ")
            raise SettingsError(f"settings: {why}. See docs/settings.md.") from None
        field = ".".join(str(part) for part in first["loc"])
        shown = "..." if _is_secret(field) else redact.passwords(repr(first.get("input")))
        name = f"{kind.model_config['env_prefix']}{field}".upper()
        why = first["msg"].removeprefix("Value error, ")
        raise SettingsError(f"setting {name} = {shown}: {why}. See docs/settings.md.") from None


def _secrets(folder: Path) -> Path | None:
    """Return ``secrets_dir``, which has to be known before all other settings are read."""
    name = "HOLDFAST_SECRETS_DIR"
    named = os.environ[name] if name in os.environ else dotenv_values(folder / "settings.env").get(name)
    if named and not Path(named).is_dir():
        raise SettingsError(f"HOLDFAST_SECRETS_DIR = {named}: no such folder")
    return Path(named) if named else None


def _is_secret(field: str) -> bool:
    return (
        any(word in field for word in ("secret", "password", "auth", "database_url")) and "file" not in field
    )
