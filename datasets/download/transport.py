"""One file fetched whole over HTTP: by ranges where a connection breaks, from mirrors, checked, in constant memory."""

import contextlib
import hashlib
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, ResponseError, SSLError
from urllib3.util import Retry, Timeout

from ...runner.core.errors import DataError, Stopped
from ..registry.catalog import RawFile
from .manifest import write_whole

_CHUNK = 1 << 20  # bytes read at a time
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # answers that another attempt may not get
_LONGEST_REST = 120.0  # seconds between two attempts, whatever a server asks for
_CONNECTIONS = 64  # to one server, kept open: beyond, urllib3 complains
_STOPPED = "Stopped: run it again to continue."

Tell = Callable[[int, int | None], None]  # bytes so far, of how many


@dataclass(frozen=True)
class Patience:
    """How often and how long a server is waited for.

    `attempts` in a row that bring no further than `progress` bytes end it; the rest between two of them doubles from
    `rest_seconds`. An attempt ends when in `stall_seconds` fewer than `stall_bytes` arrive.
    """

    attempts: int = 6
    rest_seconds: float = 1.0
    stall_seconds: float = 30.0
    stall_bytes: int = 32 * 1024
    progress: int = 1 << 16


class _Passing(Exception):
    """An attempt failed, and the next may not; `rest` is how many seconds the server asks to wait, if it does."""

    def __init__(self, reason: str, rest: float | None = None) -> None:
        super().__init__(reason)
        self.rest = rest


class _Failed(Exception):
    """Nothing more is to be had from this address."""


class Transport:
    """Fetches files, each whole or not at all. Several threads may use one; `stop` ends what they do."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._over = threading.Event()
        self._open: set[urllib3.BaseHTTPResponse] = set()
        self._pools: dict[str | None, urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Makes every `fetch` under way, and every later one, raise `Stopped`; what has arrived can be continued."""
        self._over.set()
        with self._lock:
            for response in self._open:
                with contextlib.suppress(Exception):
                    response.shutdown()  # wakes a thread that waits for bytes

    def fetch(self, file: RawFile, place: Path, tell: Tell) -> str:
        """Fetches `file` from the first of its addresses that has it, to `place`; returns its SHA-256.

        Until it is whole it lies beside `place` with the suffix .part, from which another call continues. Raises
        `DataError` with what was wrong at each address.
        """
        reasons = []
        try:
            part = _Part(place, file)
            for url in file.urls:
                try:
                    digest = self._from(url, part, tell)
                except _Failed as failure:
                    reasons.append(f"{urlsplit(url).hostname} {failure}")
                    continue
                part.keep(place)
                return digest
        except OSError as error:
            raise DataError(f"Cannot write {place} ({error.strerror}): free space there or set --data-dir.") from error
        raise DataError(
            f"{file.name} could not be fetched ({'; '.join(reasons)}): run it again later, or bring the file from "
            "elsewhere with --from."
        )

    def _from(self, url: str, part: "_Part", tell: Tell) -> str:
        """Attempt after attempt until the file is whole and what it should be."""
        failures, pieced, mended = 0, part.size > 0, False
        furthest = part.size
        while True:
            try:
                if not part.whole():
                    self._attempt(url, part, tell)
                wrong = part.wrong()
                if not wrong:
                    return part.digest("sha256")
                part.forget()
                if mended or not pieced:
                    raise _Failed(wrong)
                mended = True  # pieces of two editions, perhaps: once more from the start
            except _Passing as failure:
                failures = 0 if part.size >= furthest + self._patience.progress else failures + 1
                furthest = max(furthest, part.size)
                if failures >= self._patience.attempts:
                    raise _Failed(f"{failure}, {failures} times in a row") from failure
                pieced |= part.size > 0
                usual = self._patience.rest_seconds * 2 ** max(failures - 1, 0)
                if self._over.wait(min(failure.rest or usual, _LONGEST_REST)):
                    raise Stopped(_STOPPED) from None

    def _attempt(self, url: str, part: "_Part", tell: Tell) -> None:
        """One request for what is missing; appends what arrives to `part`."""
        with self._answer(url, part.asked(url)) as response:
            if urlsplit(url).scheme == "https" and urlsplit(response.geturl() or url).scheme == "http":
                raise _Failed("sends on to an address without encryption")
            part.begin(url, response)
            tell(part.size, part.total)
            since, before = time.monotonic(), part.size
            while data := _read(response):
                part.append(data)
                tell(part.size, part.total)
                if self._over.is_set():
                    break
                if time.monotonic() - since > self._patience.stall_seconds:
                    if part.size - before < self._patience.stall_bytes:
                        raise _Passing("sends hardly anything")
                    since, before = time.monotonic(), part.size
        if self._over.is_set():
            raise Stopped(_STOPPED)
        if not part.ended():
            raise _Passing("breaks the connection off")

    @contextlib.contextmanager
    def _answer(self, url: str, headers: dict[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """The server's answer to a request, its body not read yet."""
        once = Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5)  # failures are counted by `_from`
        wait = Timeout(connect=self._patience.stall_seconds, read=self._patience.stall_seconds)
        try:
            response = self._pool(url).request(
                "GET", url, headers=headers, preload_content=False, retries=once, timeout=wait
            )
        except MaxRetryError as error:
            if isinstance(error.reason, ResponseError):
                raise _Failed("sends on from address to address") from error
            if isinstance(error.reason, SSLError):
                raise _Failed(f"cannot prove who it is ({error.reason})") from error
            raise _Passing("cannot be reached") from error
        except HTTPError as error:
            raise _Passing("gives no answer that can be read") from error
        with self._lock:
            self._open.add(response)
        try:
            if response.status in _PASSING:
                raise _Passing(f"answers {response.status}", _asked_rest(response))
            if response.status not in (200, 206, 416):
                raise _Failed(f"answers {response.status}")
            yield response
        except HTTPError as error:
            raise _Passing("breaks the connection off or sends nothing") from error
        finally:
            with self._lock:
                self._open.discard(response)
            response.close()

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Connections, through the proxy that the environment names for such addresses."""
        address = urlsplit(url)
        bypass = urllib.request.proxy_bypass(address.hostname or "")
        proxy = None if bypass else urllib.request.getproxies().get(address.scheme)
        with self._lock:
            if proxy not in self._pools:
                secret = urllib3.util.parse_url(proxy).auth if proxy else None
                known = urllib3.make_headers(proxy_basic_auth=secret) if secret else None
                through: dict[str, Any] = {"proxy_url": proxy, "proxy_headers": known} if proxy else {}
                manager = urllib3.ProxyManager if proxy else urllib3.PoolManager
                self._pools[proxy] = manager(maxsize=_CONNECTIONS, **through)
            return self._pools[proxy]


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    """What has arrived, at least one byte unless it was the last: a larger read would not notice a trickle."""
    return response.read1(_CHUNK, decode_content=False)


def _asked_rest(response: urllib3.BaseHTTPResponse) -> float | None:
    """The seconds that a server wants to be left alone, if it says so."""
    with contextlib.suppress(HTTPError):
        return Retry().get_retry_after(response)
    return None


class _Part:
    """What has arrived of a file, in `<place>.part`; `<place>.part.json` says from where and of which edition."""

    def __init__(self, place: Path, file: RawFile) -> None:
        self._path, self._file = place.with_name(f"{place.name}.part"), file
        self._notes = place.with_name(f"{place.name}.part.json")
        self._url, self._edition = "", ""
        self.total: int | None = file.bytes
        self.size = 0
        kinds = {"sha256", file.published_sum[0] if file.published_sum else "sha256"}
        self._sums = {kind: hashlib.new(kind) for kind in kinds}
        self._recall()

    def asked(self, url: str) -> dict[str, str]:
        """The headers of a request for the rest, or for all if the server's file has changed since.

        Only where a checksum will tell can a file be pieced together from servers that do not name its edition.
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": "timetrial"}
        same = bool(self._edition) and url == self._url
        if self.size and (same or self._file.published_sum):
            headers |= {"Range": f"bytes={self.size}-"} | ({"If-Range": self._edition} if same else {})
        return headers

    def begin(self, url: str, response: urllib3.BaseHTTPResponse) -> None:
        """Takes note of what an answer will bring; starts over where that is no continuation."""
        tag = response.headers.get("ETag", "")
        edition = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")
        if response.status == 206:
            first, total = _content_range(response)
            changed = url == self._url and edition and self._edition and edition != self._edition
            if first != self.size or changed or (self.total is not None and total not in (None, self.total)):
                self.forget()
                raise _Passing("has another file than before")
        elif response.status == 416:
            self.forget()
            raise _Passing("has not as much as it had before")
        else:
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise _Failed("answers with a web page")
            self.forget()
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            marked = "chunked" in response.headers.get("Transfer-Encoding", "")  # its end is
            if total is None and self._file.bytes is None and not marked:
                raise _Failed("does not say how long the file is")
        if self._file.bytes is not None and total not in (None, self._file.bytes):
            raise _Failed(f"offers {total:,} bytes, not {self._file.bytes:,}")
        self.total = total if self._file.bytes is None else self._file.bytes
        if not self.size:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(b"")  # before its note: bytes never stand beside the note of others
        self._url, self._edition = url, edition
        write_whole(self._notes, json.dumps({"url": url, "edition": edition, "total": self.total}))

    def append(self, data: bytes) -> None:
        """Adds what has arrived."""
        if self.total is not None and self.size + len(data) > self.total:
            raise _Failed(f"sends more than {self.total:,} bytes")
        with open(self._path, "ab", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        for digest in self._sums.values():
            digest.update(data)
        self.size += len(data)

    def whole(self) -> bool:
        """Whether it is known that nothing is missing."""
        return self.size == self.total

    def ended(self) -> bool:
        """Called at the end of an answer: whether that was all, which a server may have left open until then."""
        self.total = self.size if self.total is None else self.total
        return self.whole()

    def wrong(self) -> str | None:
        """What is wrong with the whole file, as the end of a sentence about the server."""
        kind, published = self._file.published_sum or ("sha256", self.digest("sha256"))
        if self.digest(kind) == published:
            return None
        return f"has a file of the {kind} {self.digest(kind)}, not {published}"

    def digest(self, kind: str) -> str:
        """A checksum of what is there, hexadecimal."""
        return self._sums[kind].hexdigest()

    def keep(self, place: Path) -> None:
        """Gives the whole file its name."""
        self._path.replace(place)
        self._notes.unlink(missing_ok=True)

    def forget(self) -> None:
        """Throws away what is there."""
        self._notes.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self.size, self._url, self._edition = 0, "", ""
        self.total = self._file.bytes
        self._sums = {kind: hashlib.new(kind) for kind in self._sums}

    def _recall(self) -> None:
        """What an earlier call has left, if it can be continued."""
        try:
            notes: dict[str, Any] = json.loads(self._notes.read_text())
            self._url, self._edition, self.total = notes["url"], notes["edition"], notes["total"]
            with open(self._path, "rb") as file:
                while data := file.read(_CHUNK):
                    self.size += len(data)
                    for digest in self._sums.values():
                        digest.update(data)
        except (OSError, ValueError, KeyError, TypeError):
            self.forget()
        if self.total is not None and (self.size > self.total or self._file.bytes not in (None, self.total)):
            self.forget()


def _content_range(response: urllib3.BaseHTTPResponse) -> tuple[int, int | None]:
    """The first byte of a partial answer, and how many the whole has."""
    words = response.headers.get("Content-Range", "").removeprefix("bytes ").replace("-", "/").split("/")
    if len(words) != 3 or not words[0].isdecimal():
        raise _Failed("answers with a part and does not say which")
    return int(words[0]), int(words[2]) if words[2].isdecimal() else None
