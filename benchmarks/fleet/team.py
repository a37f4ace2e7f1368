"""A team's site, other than the embedded one: PostgreSQL for both databases, TLS from gateway to agents."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.certificates import Authority
from tests.storage import servers


@contextlib.contextmanager
def as_a_team(folder: Path) -> Iterator[dict[str, Any]]:
    """Settings for a server and certificates that exist as long as the block.

    Raises:
        RuntimeError: PostgreSQL is not installed.
    """
    if (programs := servers.postgres_binaries()) is None:
        raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
    pki = Authority(folder / "pki")
    cert, key = pki.certify("site", "127.0.0.1")
    with servers.postgres(programs) as ledger:
        servers.create_database(ledger, "prefect")
        prefect = ledger.replace("+psycopg", "+asyncpg").rpartition("/")[0] + "/prefect"
        yield {
            "database_url": ledger,
            "prefect_database_url": prefect,
            "tls_cert": cert,
            "tls_key": key,
            "tls_ca": pki.ca,
        }
