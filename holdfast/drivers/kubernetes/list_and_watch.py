"""List and watch: the present objects of a selection, again after every change."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from holdfast.drivers.kubernetes.api import Api, BusyError, GoneError, Object
from holdfast.errors import UnauthorizedError

_log = logging.getLogger(__name__)

LONGEST_WATCH_S = 300.0
"""A watch is renewed this often, so that one whose server vanished silently is noticed."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 8.0


class Followed(Protocol):
    """The part of :class:`Api` that :func:`follow` needs."""

    def get(self, path: str, **query: str) -> Object:
        """List."""
        ...

    def watch(self, path: str, *, resource_version: str, timeout_s: float, **query: str) -> Iterator[Object]:
        """Watch."""
        ...


def follow(
    source: Api | Followed, path: str, timeout_s: float, **query: str
) -> Iterator[Mapping[str, Object]]:
    """Yield the objects at ``path`` by uid: those that are there, then again after every change, for ``timeout_s``.

    A stream that ends is taken up where it ended; when the server has forgotten that point (410) the list is read
    again. A busy server (429, 5xx) is retried with growing delays. The last yield may be long before the end.

    Raises:
        UnauthorizedError: list or watch is not allowed.
        UnavailableError: the list cannot be had.
    """
    until = time.monotonic() + timeout_s
    backoff, denied = _Backoff(), False
    here, version = _listed(source, path, query)
    yield here
    while (left := until - time.monotonic()) > 0:
        opened = time.monotonic()
        try:
            for event in source.watch(
                path, resource_version=version, timeout_s=min(left, LONGEST_WATCH_S), **query
            ):
                backoff.reset()
                denied = False
                version = str(event["object"]["metadata"]["resourceVersion"])
                if _apply(here, event):
                    yield here
                if time.monotonic() > until:
                    return
            if time.monotonic() - opened < _FIRST_WAIT_S:
                raise BusyError("the stream ended at once")
        except GoneError as gone:
            _log.info("%s: reading the list again", gone)
            here, version = _listed(source, path, query)
            yield here
        except UnauthorizedError:
            # A server that has just started may have refused; reading the list again shows whether it still does.
            here, version = _listed(source, path, query)
            if denied:
                raise
            denied = True
            yield here
        except BusyError as busy:
            _log.info("%s: again soon", busy)
            time.sleep(min(backoff.next(busy.after_s), max(0.0, until - time.monotonic())))


class _Backoff:
    """Growing waits until a success, with jitter, so that clients do not come back at once."""

    def __init__(self) -> None:
        self._longest = _FIRST_WAIT_S

    def reset(self) -> None:
        """Reset the back-off after a success."""
        self._longest = _FIRST_WAIT_S

    def next(self, asked_s: float = 0.0) -> float:
        """Return the seconds to wait now, at least ``asked_s``."""
        wait = random.uniform(self._longest / 2, self._longest)
        self._longest = min(2 * self._longest, _LONGEST_WAIT_S)
        return max(asked_s, wait)


def _listed(source: Api | Followed, path: str, query: Mapping[str, str]) -> tuple[dict[str, Object], str]:
    answer = source.get(path, **query)
    here = {str(each["metadata"]["uid"]): each for each in answer["items"]}
    return here, str(answer["metadata"]["resourceVersion"])


def _apply(here: dict[str, Object], event: Object) -> bool:
    """Take one event in; False for a bookmark, which changes nothing."""
    uid = event["object"]["metadata"].get("uid")
    if event["type"] == "BOOKMARK":
        return False
    if event["type"] == "DELETED":
        here.pop(uid, None)
    else:
        here[uid] = event["object"]
    return True
