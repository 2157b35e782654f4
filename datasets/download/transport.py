"""Download of one file over HTTP: resumed by range requests, tried on several mirrors, verified, in constant memory."""

import contextlib
import hashlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, ResponseError, SSLError
from urllib3.util import Retry, Timeout

from ...runner.core.errors import DataError, Stopped
from ...runner.core.progress import ProgressCallback, no_progress
from ..registry.catalog import RawFile
from .manifest import write_text

_CHUNK_BYTES = 1 << 20
_TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)
_MAX_DELAY_SECONDS = 120.0  # between two attempts, whatever a server asks for
_MAX_CONNECTIONS = 64  # to one server; beyond, urllib3 warns
_STOPPED = "Stopped: run it again to continue."


@dataclass(frozen=True)
class RetryPolicy:
    """When an attempt is given up and how often it is repeated.

    A URL is given up after `max_attempts` in a row of which none brought `min_progress_bytes`. The delay between two
    attempts doubles from `backoff_seconds`. An attempt ends when fewer than `stall_bytes` arrive in `stall_seconds`.
    """

    max_attempts: int = 6
    backoff_seconds: float = 1.0
    stall_seconds: float = 30.0
    stall_bytes: int = 32 * 1024
    min_progress_bytes: int = 1 << 16


class TransientError(Exception):
    """An attempt failed, but the next one may succeed; `delay` is how many seconds the server asks to wait, if any."""

    def __init__(self, reason: str, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class PermanentError(Exception):
    """The file cannot be had from this URL."""


class Transport:
    """Downloads files, each atomically. Threads may share one; `stop` ends all their downloads."""

    def __init__(self, retry: RetryPolicy | None = None) -> None:
        self._retry = retry or RetryPolicy()
        self._stopped = threading.Event()
        self._open_responses: set[urllib3.BaseHTTPResponse] = set()
        self._pools: dict[str | None, urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Make every current and later `fetch` raise `Stopped`; what has arrived is kept and can be continued."""
        self._stopped.set()
        with self._lock:
            for response in self._open_responses:
                with contextlib.suppress(Exception):
                    response.shutdown()  # wakes a thread that waits for bytes

    def fetch(self, file: RawFile, path: Path, progress: ProgressCallback = no_progress) -> str:
        """Download `file` to `path` from the first of its URLs that has it, and return its SHA-256.

        An incomplete download is kept beside `path` with the suffix .part, and the next call continues it. Raises
        `DataError` with the problem of each URL.
        """
        reasons = []
        try:
            partial_file = _PartialFile(path, file)
            for url in file.urls:
                try:
                    digest = self._fetch_from(url, partial_file, progress)
                except PermanentError as error:
                    reasons.append(f"{urlsplit(url).hostname} {error}")
                    continue
                partial_file.commit(path)
                return digest
        except OSError as error:
            raise DataError(f"Cannot write {path} ({error.strerror}): free space there or set --data-dir.") from error
        raise DataError(
            f"{file.name} could not be fetched ({'; '.join(reasons)}): try again later, or get the file elsewhere and "
            "add --from."
        )

    def _fetch_from(self, url: str, partial_file: "_PartialFile", progress: ProgressCallback) -> str:
        """Repeat attempts until the file is complete and verified; return its SHA-256."""
        failures, restarted = 0, False
        is_resumed, max_size = partial_file.size > 0, partial_file.size
        while True:
            try:
                if not partial_file.is_complete():
                    self._attempt(url, partial_file, progress)
                mismatch = partial_file.checksum_mismatch()
                if not mismatch:
                    return partial_file.digest("sha256")
                partial_file.discard()
                if restarted or not is_resumed:
                    raise PermanentError(mismatch)
                restarted = True  # the parts may come from two versions of the file: start over once
            except TransientError as error:
                failures = 0 if partial_file.size >= max_size + self._retry.min_progress_bytes else failures + 1
                max_size = max(max_size, partial_file.size)
                if failures >= self._retry.max_attempts:
                    raise PermanentError(f"{error}, {failures} times in a row") from error
                is_resumed |= partial_file.size > 0
                backoff = self._retry.backoff_seconds * 2 ** max(failures - 1, 0)
                if self._stopped.wait(min(error.delay or backoff, _MAX_DELAY_SECONDS)):
                    raise Stopped(_STOPPED) from None

    def _attempt(self, url: str, partial_file: "_PartialFile", progress: ProgressCallback) -> None:
        """Request what is missing and append it to `partial_file`."""
        description = f"fetching {partial_file.name}"
        with self._request(url, partial_file.request_headers(url)) as response:
            if urlsplit(url).scheme == "https" and urlsplit(response.geturl() or url).scheme == "http":
                raise PermanentError("redirects to a URL without encryption")
            partial_file.start_response(url, response)
            progress(description, partial_file.size, partial_file.total)
            window_start, window_size = time.monotonic(), partial_file.size
            while data := _read(response):
                partial_file.append(data)
                progress(description, partial_file.size, partial_file.total)
                if self._stopped.is_set():
                    break
                if time.monotonic() - window_start > self._retry.stall_seconds:
                    if partial_file.size - window_size < self._retry.stall_bytes:
                        raise TransientError("sends hardly anything")
                    window_start, window_size = time.monotonic(), partial_file.size
        if self._stopped.is_set():
            raise Stopped(_STOPPED)
        if not partial_file.end_response():
            raise TransientError("closes the connection early")

    @contextlib.contextmanager
    def _request(self, url: str, headers: dict[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Yield the server's response, whose body has not been read yet."""
        once = Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5)  # `_fetch_from` repeats
        timeout = Timeout(connect=self._retry.stall_seconds, read=self._retry.stall_seconds)
        try:
            response = self._pool(url).request(
                "GET", url, headers=headers, preload_content=False, retries=once, timeout=timeout
            )
        except MaxRetryError as error:
            if isinstance(error.reason, ResponseError):
                raise PermanentError("redirects too often") from error
            if isinstance(error.reason, SSLError):
                raise PermanentError(f"has no valid certificate ({error.reason})") from error
            raise TransientError("cannot be reached") from error
        except HTTPError as error:
            raise TransientError("sends no valid response") from error
        with self._lock:
            self._open_responses.add(response)
        try:
            if response.status in _TRANSIENT_STATUS:
                raise TransientError(f"answers {response.status}", _retry_after(response))
            if response.status not in (200, 206, 416):
                raise PermanentError(f"answers {response.status}")
            yield response
        except HTTPError as error:
            raise TransientError("closes the connection or sends nothing") from error
        finally:
            with self._lock:
                self._open_responses.discard(response)
            response.close()

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Return the connection pool for `url`, through the proxy that the environment names for it."""
        address = urlsplit(url)
        bypass = urllib.request.proxy_bypass(address.hostname or "")
        proxy = None if bypass else urllib.request.getproxies().get(address.scheme)
        with self._lock:
            if proxy not in self._pools:
                credentials = urllib3.util.parse_url(proxy).auth if proxy else None
                headers = urllib3.make_headers(proxy_basic_auth=credentials) if credentials else None
                options: dict[str, Any] = {"proxy_url": proxy, "proxy_headers": headers} if proxy else {}
                manager = urllib3.ProxyManager if proxy else urllib3.PoolManager
                self._pools[proxy] = manager(maxsize=_MAX_CONNECTIONS, **options)
            return self._pools[proxy]


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    """Return what has arrived, empty at the end. Waiting for a full chunk would not notice a stalled server."""
    return response.read1(_CHUNK_BYTES, decode_content=False)


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    """Return the seconds of the Retry-After header, if there is one."""
    with contextlib.suppress(HTTPError):
        return Retry().get_retry_after(response)
    return None


class _PartialFile:
    """What has arrived of a file, in `<path>.part`; `<path>.part.json` holds its URL, version and total size.

    The version is the server's ETag or Last-Modified header.
    """

    def __init__(self, path: Path, file: RawFile) -> None:
        self._path, self._file = path.with_name(f"{path.name}.part"), file
        self._state_path = path.with_name(f"{path.name}.part.json")
        self._url, self._version = "", ""
        self.name = file.name
        self.total: int | None = file.bytes
        self.size = 0
        algorithms = {"sha256", file.published_checksum[0] if file.published_checksum else "sha256"}
        self._hashes = {algorithm: hashlib.new(algorithm) for algorithm in algorithms}
        self._restore()

    def request_headers(self, url: str) -> dict[str, str]:
        """Return the headers of a request for the rest, or for all of the file if the server's version has changed.

        Without a version, parts are joined only where a published checksum verifies the result.
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": "timetrial"}
        is_same_version = bool(self._version) and url == self._url
        if self.size and (is_same_version or self._file.published_checksum):
            headers |= {"Range": f"bytes={self.size}-"} | ({"If-Range": self._version} if is_same_version else {})
        return headers

    def start_response(self, url: str, response: urllib3.BaseHTTPResponse) -> None:
        """Record what a response will bring; start over if it does not continue the file."""
        etag = response.headers.get("ETag", "")
        version = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")
        if response.status == 206:
            first, total = _content_range(response)
            has_changed = url == self._url and version and self._version and version != self._version
            if first != self.size or has_changed or (self.total is not None and total not in (None, self.total)):
                self.discard()
                raise TransientError("has another file than before")
        elif response.status == 416:
            self.discard()
            raise TransientError("has a shorter file than before")
        else:
            total = self._start_over(response)
        if self._file.bytes is not None and total not in (None, self._file.bytes):
            raise PermanentError(f"offers {total:,} bytes, not {self._file.bytes:,}")
        self.total = total if self._file.bytes is None else self._file.bytes
        if not self.size:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(b"")  # before its state, which must never describe other bytes
        self._url, self._version = url, version
        write_text(self._state_path, json.dumps({"url": url, "version": version, "total": self.total}))

    def append(self, data: bytes) -> None:
        """Add received bytes."""
        if self.total is not None and self.size + len(data) > self.total:
            raise PermanentError(f"sends more than {self.total:,} bytes")
        with open(self._path, "ab", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        for digest in self._hashes.values():
            digest.update(data)
        self.size += len(data)

    def is_complete(self) -> bool:
        """Return whether the size is known and reached."""
        return self.size == self.total

    def end_response(self) -> bool:
        """Return whether the file is complete at the end of a response, which may be what tells its size."""
        self.total = self.size if self.total is None else self.total
        return self.is_complete()

    def checksum_mismatch(self) -> str | None:
        """Return how the complete file differs from its published checksum, to follow the server's name."""
        algorithm, published = self._file.published_checksum or ("sha256", self.digest("sha256"))
        if self.digest(algorithm) == published:
            return None
        return f"has a file with the {algorithm} {self.digest(algorithm)}, not {published}"

    def digest(self, algorithm: str) -> str:
        """Return the hexadecimal checksum of what has arrived."""
        return self._hashes[algorithm].hexdigest()

    def commit(self, path: Path) -> None:
        """Rename the complete file to `path`."""
        self._path.replace(path)
        self._state_path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete what has arrived."""
        self._state_path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self.size, self._url, self._version = 0, "", ""
        self.total = self._file.bytes
        self._hashes = {algorithm: hashlib.new(algorithm) for algorithm in self._hashes}

    def _start_over(self, response: urllib3.BaseHTTPResponse) -> int | None:
        """Discard what has arrived; return the size of the whole file that the response brings, if it is known."""
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise PermanentError("answers with a web page")
        self.discard()
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        is_chunked = "chunked" in response.headers.get("Transfer-Encoding", "")  # which marks the end
        if total is None and self._file.bytes is None and not is_chunked:
            raise PermanentError("does not send the length of the file")
        return total

    def _restore(self) -> None:
        """Load what an earlier call has left, if it can be continued."""
        try:
            state: dict[str, Any] = json.loads(self._state_path.read_text())
            self._url, self._version, self.total = state["url"], state["version"], state["total"]
            with open(self._path, "rb") as file:
                while data := file.read(_CHUNK_BYTES):
                    self.size += len(data)
                    for digest in self._hashes.values():
                        digest.update(data)
        except (OSError, ValueError, KeyError, TypeError):
            self.discard()
        if self.total is not None and (self.size > self.total or self._file.bytes not in (None, self.total)):
            self.discard()


def _content_range(response: urllib3.BaseHTTPResponse) -> tuple[int, int | None]:
    """Return the first byte of a partial response and the size of the whole file, if it is given."""
    fields = response.headers.get("Content-Range", "").removeprefix("bytes ").replace("-", "/").split("/")
    if len(fields) != 3 or not fields[0].isdecimal():
        raise PermanentError("sends a part of the file without its position")
    return int(fields[0]), int(fields[2]) if fields[2].isdecimal() else None
