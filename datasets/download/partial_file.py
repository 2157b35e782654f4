"""What has arrived of a file that is being downloaded."""

import hashlib
import json
from pathlib import Path
from typing import Any

import urllib3

from ..registry.catalog import RawFile
from .manifest import write_text

_CHUNK_BYTES = 1 << 20
_MAX_DIGITS = 18  # of a number in a header


class TransientError(Exception):
    """An attempt failed, but the next one may succeed; `delay` is how many seconds the server asks to wait, if any."""

    def __init__(self, reason: str, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class PermanentError(Exception):
    """The file cannot be had from this URL."""


class PartialFile:
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
        total = to_int(length)
        is_chunked = "chunked" in response.headers.get("Transfer-Encoding", "")  # which marks the end
        if total is None and self._file.bytes is None and not is_chunked:
            raise PermanentError("does not send the length of the file")
        return total

    def _restore(self) -> None:
        """Load what an earlier call has left, if it can be continued."""
        try:
            state: dict[str, Any] = json.loads(self._state_path.read_text(encoding="utf-8"))
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


def to_int(text: str) -> int | None:
    """Return the number that a header holds, or None if it holds none that can be a size or a time."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def _content_range(response: urllib3.BaseHTTPResponse) -> tuple[int, int | None]:
    """Return the first byte of a partial response and the size of the whole file, if it is given."""
    fields = response.headers.get("Content-Range", "").removeprefix("bytes ").replace("-", "/").split("/")
    first = to_int(fields[0])
    if len(fields) != 3 or first is None:
        raise PermanentError("sends a part of the file without its position")
    return first, to_int(fields[2])
