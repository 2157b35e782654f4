"""Download of one file over HTTP: resumed by range requests, tried on several mirrors, verified, in constant memory."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProxyError, SSLError
from urllib3.util import Retry, Timeout

from ...runner.core.atomic_files import write_failure
from ...runner.core.errors import DataError, Stopped
from ...runner.core.progress import ProgressCallback, no_progress
from ..registry.catalog import RawFile
from .connections import Connections
from .partial_file import PartialFile, PermanentError, TransientError

_CHUNK_BYTES = 1 << 20
_TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)
_MAX_DELAY_SECONDS = 120.0  # between two attempts, whatever a server asks for
_MAX_REDIRECTS = 5
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


class Transport:
    """Downloads files, each atomically. Threads may share one; `stop` ends all their downloads."""

    def __init__(self, retry: RetryPolicy | None = None) -> None:
        self._retry = retry or RetryPolicy()
        self._stopped = threading.Event()
        self._open: set[Connections] = set()
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Make every current and later `fetch` raise `Stopped`; what has arrived is kept and can be continued."""
        self._stopped.set()
        with self._lock:
            for connections in self._open:
                connections.shut()

    def fetch(self, file: RawFile, path: Path, progress: ProgressCallback = no_progress) -> str:
        """Download `file` to `path` from the first of its URLs that has it, and return its SHA-256.

        An incomplete download is kept beside `path` with the suffix .part, and the next call continues it. Raises
        `DataError` with the problem of each URL.
        """
        reasons = []
        try:
            partial_file = PartialFile(path, file)
            for url in file.urls:
                try:
                    digest = self._fetch_from(url, partial_file, progress)
                except PermanentError as error:
                    reasons.append(f"{urlsplit(url).hostname} {error}")
                    continue
                partial_file.commit(path)
                return digest
        except OSError as error:
            raise write_failure(path, error, "set --data-dir", DataError) from error
        raise DataError(
            f"{file.name} could not be fetched ({'; '.join(reasons)}): try again later, or get the file elsewhere and "
            "add --from."
        )

    def _fetch_from(self, url: str, partial_file: PartialFile, progress: ProgressCallback) -> str:
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

    def _attempt(self, url: str, partial_file: PartialFile, progress: ProgressCallback) -> None:
        """Request what is missing and append it to `partial_file`."""
        with self._interruptible(partial_file) as connections:
            with self._request(url, partial_file.request_headers(url), connections) as response:
                partial_file.start_response(url, response)
                self._append_body(response, partial_file, progress)
            if not partial_file.end_response():
                raise TransientError("closes the connection early")

    def _append_body(
        self, response: urllib3.BaseHTTPResponse, partial_file: PartialFile, progress: ProgressCallback
    ) -> None:
        description = f"fetching {partial_file.name}"
        progress(description, partial_file.size, partial_file.total)
        while data := _read(response):
            partial_file.append(data)
            progress(description, partial_file.size, partial_file.total)
            if self._stopped.is_set():
                return

    @contextlib.contextmanager
    def _interruptible(self, partial_file: PartialFile) -> Iterator[Connections]:
        """Yield connections that are shut when `stop` is called or when hardly anything arrives.

        This ends every wait: for a header or a chunk's size that arrives byte by byte as well as for the file.
        """
        connections, done = Connections(), threading.Event()
        with self._lock:
            self._open.add(connections)
        watchdog = threading.Thread(target=self._watch, args=(connections, partial_file, done), daemon=True)
        watchdog.start()
        try:
            yield connections
        except (TransientError, PermanentError):
            if connections.are_shut and not self._stopped.is_set():
                raise TransientError("sends hardly anything") from None
            if not self._stopped.is_set():
                raise
        finally:
            done.set()
            with self._lock:
                self._open.discard(connections)
            watchdog.join()
            connections.close()
        if self._stopped.is_set():
            raise Stopped(_STOPPED)

    def _watch(self, connections: Connections, partial_file: PartialFile, done: threading.Event) -> None:
        """Shut the connections when fewer than `stall_bytes` arrive in `stall_seconds`."""
        size = partial_file.size
        while not (self._stopped.is_set() or done.wait(self._retry.stall_seconds)):
            if partial_file.size - size < self._retry.stall_bytes:
                break
            size = partial_file.size
        if not done.is_set():
            connections.shut()

    @contextlib.contextmanager
    def _request(
        self, url: str, headers: dict[str, str], connections: Connections
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Yield the server's response, redirects followed, whose body has not been read yet."""
        response = self._follow_redirects(url, headers, connections)
        try:
            if response.status in _TRANSIENT_STATUS:
                raise TransientError(f"answers {response.status}", _retry_after(response))
            if response.status not in (200, 206, 416):
                raise PermanentError(f"answers {response.status}")
            yield response
        except (HTTPError, ValueError) as error:
            raise TransientError("closes the connection or sends nothing") from error
        finally:
            response.close()

    def _follow_redirects(
        self, url: str, headers: dict[str, str], connections: Connections
    ) -> urllib3.BaseHTTPResponse:
        """Return the first response that is no redirect; no hop may leave https for http."""
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._send(url, headers, connections)
            location = response.get_redirect_location()
            if not location:
                return response
            response.close()
            try:
                target = urljoin(url, location)
                schemes = urlsplit(url).scheme, urlsplit(target).scheme
            except ValueError as error:
                raise PermanentError("redirects to an address that is not valid") from error
            if schemes[1] not in ("http", "https"):
                raise PermanentError("redirects to an address that is neither http nor https")
            if schemes == ("https", "http"):
                raise PermanentError("redirects to a URL without encryption")
            url = target
        raise PermanentError("redirects too often")

    def _send(self, url: str, headers: dict[str, str], connections: Connections) -> urllib3.BaseHTTPResponse:
        """Return the response to one request."""
        timeout = Timeout(connect=self._retry.stall_seconds, read=None)  # `_watch` ends the others
        try:
            return connections.pool(url).request(
                "GET", url, headers=headers, preload_content=False, retries=False, redirect=False, timeout=timeout
            )
        except SSLError as error:
            raise PermanentError(f"has no valid certificate ({error})") from error
        except (ConnectTimeoutError, NewConnectionError, ProxyError) as error:
            raise TransientError("cannot be reached") from error
        except (HTTPError, ValueError) as error:
            raise TransientError("sends no valid response") from error


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    """Return what has arrived, empty at the end. Waiting for a full chunk would not notice a stalled server."""
    return response.read1(_CHUNK_BYTES, decode_content=False)


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    """Return the seconds of the Retry-After header, if there is one."""
    with contextlib.suppress(HTTPError, ValueError, OverflowError):  # such as a number of 5,000 digits
        return Retry().get_retry_after(response)
    return None
