"""The side of a worker: batches of leased splits, wherever it runs and however many others there are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from holdfast import errors
from holdfast.data.files import File, Split
from holdfast.data.formats import format_of
from holdfast.data.order import permuted
from holdfast.data.patience import PlacePatience
from holdfast.data.rows import Rows, cut, take
from holdfast.data.source_order import key_of
from holdfast.data.sources import Mix, Source, as_mix
from holdfast.errors import HoldfastError, StaleError, UnavailableError

_PAUSE_S = 0.2


@dataclass(frozen=True)
class Receipt:
    """Receipt to commit once the rows were used; plain data, to be sent along with them."""

    run: str
    split: int
    token: int
    upto: int


@dataclass(frozen=True)
class LeasedRows:
    """Rows of one split."""

    rows: Rows
    source: str
    """Its name in the mix; empty for a single source."""
    receipt: Receipt


class LeasedSplits:
    """Batches of the splits that a server leases to this worker."""

    def __init__(
        self,
        url: str,
        token: str,
        source: Source | Mix,
        *,
        worker: str,
        batch: int = 256,
        seed: int = 0,
        patience_s: float = 300.0,
        poll_s: float = 1.0,
        ca: str | None = None,
    ) -> None:
        """Connect with the first batch.

        Args:
            url: of the :class:`~holdfast.data.LeaseServer`.
            token: of the server.
            source: the same as the server's.
            worker: a name that no other process has, now or earlier: host, process id and start time.
            batch: rows of a batch, at most.
            seed: of the shuffle within splits; the same for all workers.
            patience_s: seconds to wait for a server, or a place of data, that does not answer.
            poll_s: seconds between questions when all splits are leased to others.
            ca: file of the authority of the server's certificate.
        """
        self._mix, self._worker, self._batch, self._seed = as_mix(source), worker, batch, seed
        self._patience_s, self._poll_s = patience_s, poll_s
        self._formats = {name: each.formats() for name, each in self._mix.sources.items()}
        self._have: tuple[int, ...] = ()
        self._run = ""
        self._left: tuple[str, int] | None = None
        """Run and token of the last lease that is known to be over."""
        import ssl  # noqa: PLC0415

        self._http = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            timeout=30,
            verify=ssl.create_default_context(cafile=ca) if ca else True,
        )

    def __iter__(self) -> Iterator[LeasedRows]:
        """Yield batches until every row of the data was committed; commit each with its receipt once it was used.

        A split goes on in an order that its seed gives. A split that was granted to another is left at once.
        """
        while (answer := self._ask("grant", worker=self._worker, have=self._have)) != {"done": True}:
            if "lease" not in answer:
                time.sleep(self._poll_s)
                continue
            # Tokens of another run mean other leases.
            kept = self._have[-1000:] if answer["run"] == self._run else ()
            self._run, self._have = answer["run"], (*kept, answer["lease"]["token"])
            yield from self._batches(answer)

    def commit(self, receipt: Receipt) -> bool:
        """Note that rows were used, and all before them of the split; the lease goes on.

        False: they are served again to another, since the lease ended or the position was restored. Then they must not
        count.
        """
        try:
            self._ask("commit", run=receipt.run, split=receipt.split, token=receipt.token, upto=receipt.upto)
        except StaleError:
            self._left = receipt.run, receipt.token
            return False
        return True

    def give_back(self, receipt: Receipt) -> None:
        """End the lease of a split early: the rest is served to others."""
        self._left = receipt.run, receipt.token
        self._ask("give-back", run=receipt.run, split=receipt.split, token=receipt.token)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _batches(self, granted: dict[str, Any]) -> Iterator[LeasedRows]:
        lease, name = granted["lease"], granted["source"]
        rows = self._rows(name, granted["file"], Split(*granted["split"]), lease["split"])
        for first in range(lease["first"], len(rows), self._batch):
            if self._left == (granted["run"], lease["token"]):
                return  # what is left of it would be used in vain
            last = min(len(rows), first + self._batch)
            receipt = Receipt(granted["run"], lease["split"], lease["token"], last)
            yield LeasedRows(cut(rows, first, last), name, receipt)

    def _rows(self, name: str, file: list[Any], split: Split, number: int) -> Rows:
        source = self._mix.sources[name]
        listed_path, nbytes, version, when = file
        listed = File(listed_path, nbytes, version, datetime.fromisoformat(when) if when else None)
        path = f"{source.place.name.rstrip('/')}/{listed.path}"

        def read() -> Rows:
            with source.place.open(listed) as opened:
                return self._formats[name][format_of(path, source.format)].read(opened, path, split)

        rows = PlacePatience(self._patience_s).ask(read)
        if source.shuffle:
            key = key_of(f"{self._seed}/{name}", number)
            rows = take(rows, permuted(len(rows), key))
        return source.decoded(rows, path, split)

    def _ask(self, act: str, **request: Any) -> dict[str, Any]:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                answer = self._http.post(f"/v1/{act}", json=request)
                if answer.status_code < 500:
                    break
                reason = f"status {answer.status_code}"
            except httpx.HTTPError as error:
                reason = f"{type(error).__name__}: {error}"
            if time.monotonic() > deadline:
                raise UnavailableError(f"{self._http.base_url}: the lease server does not answer ({reason})")
            time.sleep(_PAUSE_S)
        try:
            found: dict[str, Any] = answer.json()
        except ValueError:  # another server, or a proxy before it
            raise UnavailableError(
                f"{self._http.base_url}: status {answer.status_code}: no lease server"
            ) from None
        if not answer.is_success:
            kind = getattr(errors, str(found.get("error")), HoldfastError)
            raise kind(f"{self._http.base_url}: {found.get('detail', answer.text)}")
        return found
