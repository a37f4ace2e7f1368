"""A listing over HTTP: a page of links, a JSON list or a plain list of paths, with the files beside it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import httpx

from holdfast.data.at_once import each_of
from holdfast.data.files import File, counts
from holdfast.data.places import changed
from holdfast.data.ranges import opened
from holdfast.errors import SettingsError, SourceError, UnavailableError

MOST_PAGES = 100_000
MOST_REDIRECTS = 20
AT_ONCE = 8
_PLAIN = "/:@!$&'()*+,;=~"
"""Characters that a path of an address may have as they are, beside letters, digits and ``_.-``."""


@dataclass(frozen=True)
class HttpPlace:
    """Files that a listing names, below its address; a page's links that end in ``/`` are pages of more.

    Known are pages of links (Apache, nginx, ``python -m http.server``), JSON (a list of paths, or nginx's), and text
    with a path per line.
    """

    name: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if urlsplit(self.name).scheme not in ("http", "https") or not urlsplit(self.name).netloc:
            raise SettingsError(f"{self.name}: expected http://host/path/ or https://host/path/")

    @property
    def _base(self) -> str:
        """The address that paths are below."""
        return urljoin(self.name, ".")

    def files(self) -> Iterator[File]:
        """Read the listing's pages, and ask for each file's size and version."""
        pages, seen, urls = [self.name], {self.name}, dict[str, None]()
        below = ""
        while pages:
            page, answer = self._page(pages.pop())
            below = below or urljoin(page, ".")
            for url in _links(page, answer, below):
                path = url[len(self._base) :]
                if not url.startswith(below) or url == below or not counts(path):
                    continue
                if not path.endswith("/"):
                    urls[url] = None
                elif url not in seen:
                    seen.add(url)
                    pages.append(url)
            if len(seen) > MOST_PAGES:
                raise SourceError(f"{self.name}: more than {MOST_PAGES} pages of links")
        yield from each_of(self._file, list(urls), AT_ONCE)

    def open(self, file: File) -> BinaryIO:
        """Open it; a server that knows no ranges sends all of it, once."""
        return opened(file.nbytes, _Bringer(self, file))

    def _page(self, url: str) -> tuple[str, httpx.Response]:
        """Return a page of the listing, and what its links are seen from: a folder's address ends in ``/``."""
        answer = self._ask("GET", url)
        if answer.status_code != 200:
            raise self._failed(url, answer)
        parts = urlsplit(url)
        if urlsplit(str(answer.url)).path == f"{parts.path}/":  # where servers send those who leave it out
            url = urlunsplit(parts._replace(path=f"{parts.path}/"))
        return url, answer

    def _file(self, url: str) -> File:
        answer = self._ask("HEAD", url)
        if answer.status_code != 200:
            raise self._failed(url, answer)
        if "content-length" not in answer.headers:
            raise SourceError(f"{url}: the server does not say its size (Content-Length)")
        return File(
            unquote(url[len(self._base) :]), int(answer.headers["content-length"]), version_of(answer)
        )

    def _url(self, file: File) -> str:
        return self._base + quote(file.path, safe=_PLAIN)

    def _ask(self, method: str, url: str, **headers: str) -> httpx.Response:
        last: Exception | None = None
        for _ in range(3):
            try:
                answer = self._answer(method, url, headers)
            except httpx.HTTPError as error:
                last = error
                continue
            if answer.status_code < 500 and answer.status_code not in _LATER:
                return answer
            last = RuntimeError(f"status {answer.status_code}")
        raise UnavailableError(f"{url}: the server does not answer: {last}")

    def _answer(self, method: str, url: str, headers: Mapping[str, str]) -> httpx.Response:
        """Ask once, and follow redirects: what the headers prove is for this place's host alone."""
        client = _client_of(os.getpid())
        request = client.build_request(method, url, headers={**dict(self.headers), **headers})
        home = request.url
        for _redirect in range(MOST_REDIRECTS):
            answer = client.send(request, follow_redirects=False)
            if answer.next_request is None:
                return answer
            request = answer.next_request
            if not _is_of(home, request.url):
                for name, _ in self.headers:
                    request.headers.pop(name, None)
        raise SourceError(f"{url}: more than {MOST_REDIRECTS} redirects")

    def _failed(self, url: str, answer: httpx.Response) -> SourceError:
        return SourceError(f"{url}: the server answers {answer.status_code} {answer.reason_phrase}")


_LATER = {408, 429}
"""Answers of a server that wants to be asked again, as all of 500 and above."""


class _Bringer:
    """Brings ranges of one file."""

    def __init__(self, place: HttpPlace, file: File) -> None:
        self._place, self._file, self._whole = place, file, b""

    def __call__(self, start: int, stop: int) -> bytes:
        if self._whole:
            return self._whole[start:stop]
        place, file = self._place, self._file
        answer = place._ask("GET", place._url(file), Range=f"bytes={start}-{stop - 1}")
        if answer.status_code in (404, 410, 416):
            raise SourceError(changed(place.name, file, f"the server answers {answer.status_code}"))
        if answer.status_code not in (200, 206):
            raise place._failed(place._url(file), answer)
        content = answer.content
        whole = int(answer.headers.get("content-range", "/0").rpartition("/")[2] or 0)
        nbytes = len(content) if answer.status_code == 200 else whole
        if (nbytes, version_of(answer)) != (file.nbytes, file.version):
            raise SourceError(
                changed(place.name, file, f"it has {nbytes} bytes and version {version_of(answer)}")
            )
        if answer.status_code == 200:
            self._whole = content
            return content[start:stop]
        if len(content) != stop - start:
            raise UnavailableError(f"{place._url(file)}: {len(content)} bytes came of {stop - start}")
        return content


class _Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one."""
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _is_of(home: httpx.URL, url: httpx.URL) -> bool:
    """Return whether an address is of the same server, or of the same one with TLS."""
    if (url.scheme, url.host, url.port) == (home.scheme, home.host, home.port):
        return True
    return (url.scheme, url.host) == ("https", home.host) and home.port is None and url.port is None


def version_of(answer: httpx.Response) -> str:
    """Return what changes with the content: the ETag, or the time of modification."""
    return str(answer.headers.get("etag") or answer.headers.get("last-modified") or "")


def _links(page: str, answer: httpx.Response, below: str) -> list[str]:
    """Return the addresses that a page names.

    Raises:
        SourceError: it is no listing, or lists what is not ``below``.
    """
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()
    if kind == "application/json":
        return _listed(page, _json_paths(page, answer), below)
    if kind == "text/html":
        parser = _Links()
        parser.feed(answer.text)
        return [
            urlunsplit(urlsplit(urljoin(page, each))._replace(query="", fragment="")) for each in parser.found
        ]
    if kind.startswith("text/") or kind in ("", "application/octet-stream"):
        lines = (line.strip() for line in answer.text.removeprefix("\ufeff").splitlines())
        return _listed(page, [line for line in lines if line and not line.startswith("#")], below)
    raise SourceError(f"{page}: no listing: content type {kind}, expected HTML, JSON or text")


def _listed(page: str, paths: Iterable[str], below: str) -> list[str]:
    """Return the addresses of a list, of which each is meant, as against the links of a page."""
    found = []
    for path in paths:
        # A name with a colon is no scheme.
        url = urljoin(page, path if path.startswith(("/", "http://", "https://")) else f"./{path}")
        if not url.startswith(below):
            raise SourceError(f"{page}: it lists {path}, which is not below {below}")
        found.append(url)
    return found


def _json_paths(page: str, answer: httpx.Response) -> list[str]:
    wrong = SourceError(f"{page}: expected a JSON list of paths, or of objects with a name")
    try:
        listed: Any = answer.json()
        if not isinstance(listed, list):
            raise wrong
        return [
            each if isinstance(each, str) else quote(each["name"]) + "/" * (each.get("type") == "directory")
            for each in listed
        ]
    except (ValueError, TypeError, KeyError):
        raise wrong from None


@functools.cache
def _client_of(_pid: int) -> httpx.Client:
    """Return the client of a process. Compressed answers would have other sizes than the files."""
    return httpx.Client(timeout=60, headers={"accept-encoding": "identity"})
