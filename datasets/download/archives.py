"""Safe extraction of archives: only regular files, only below the target folder, and with a limit on their size.

`tarfile.extractall(filter="data")` is not enough here: it accepts links, duplicate names and archives of any size, and
takes a damaged header in the middle of an archive for its end.
"""

import errno
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from ...runner.core.errors import DataError
from .worker_pool import ByteCounter

_CHUNK_BYTES = 1 << 20
_TAR_BUFFER_BYTES = 1 << 16  # with a larger buffer, tarfile copies the remainder for each member
# Limits on the uncompressed size: text shrinks to about a quarter, images hardly at all.
_MAX_RATIO, _EXTRA_BYTES = 20, 1 << 24
_MIN_ENTRY_BYTES, _EXTRA_ENTRIES = 100, 1000  # the smallest entry of a zip; those of a tar are larger
_MAX_NAME_BYTES = 1 << 16
_DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
    ValueError, IndexError, OverflowError, struct.error,  # numbers and names that make no sense
)  # fmt: skip

MemberFilter = Callable[[str], str | None]  # maps a member's name to its path below the folder; None skips it


def keep_all(name: str) -> str | None:
    """Keep every member under its own name."""
    return name


def unpack(
    archive: Path, folder: Path, select: MemberFilter = keep_all, count: ByteCounter = lambda num_bytes: None
) -> None:
    """Unpack a tar (also compressed), zip or single .gz below `folder`; copy any other file there unchanged.

    Raises `DataError` if the archive is damaged, contains a name that leaves the folder, a member that is neither file
    nor folder or a duplicate name, or expands beyond the limits. Files unpacked by then stay, so the caller must use a
    temporary folder.
    """
    name = archive.name.lower()
    with _archive_errors(archive):
        if name.endswith(".zip"):
            _unpack_zip(archive, folder, select, count)
        elif name.endswith((".tar", ".tar.gz", ".tgz")):
            with open(archive, "rb") as file:
                unpack_tar(file, archive, archive.stat().st_size, folder, select, count)
        else:
            with open(archive, "rb") as file:
                content = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
                path = select(archive.name.removesuffix(".gz")) or archive.name
                _write(_LimitedReader(content, _ExpansionLimit(archive)), folder / path, archive, count)
            count(archive.stat().st_size)


def unpack_tar(
    file: "IO[bytes] | FileSlice", archive: Path, size: int, folder: Path, select: MemberFilter, count: ByteCounter
) -> None:
    """Unpack the tar of `size` bytes, compressed or not, that is read from `file`; raises as `unpack` does."""
    limit, position = _ExpansionLimit(archive, size), 0
    content = gzip.GzipFile(fileobj=file) if archive.name.lower().endswith(("gz", "tgz")) else file
    with (
        _archive_errors(archive),
        tarfile.open(fileobj=content, mode="r|", tarinfo=_StrictTarInfo, bufsize=_TAR_BUFFER_BYTES) as tar,
    ):
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # a million members take a gigabyte
            limit.count(member.name, tarfile.BLOCKSIZE + member.size)
            path = select(_safe_name(member.name, archive))
            if path is None or member.isdir():
                continue
            if not member.isreg():
                raise _not_a_file(archive, member.name)
            source = tar.extractfile(member)
            assert source is not None  # the member is a regular file
            if _write(source, folder / path, archive, count) != member.size:
                raise EOFError("it ends early")
            count(file.tell() - position)
            position = file.tell()
        while content.read(_CHUNK_BYTES):  # to the checksum at the end of a compressed archive
            pass
        count(file.tell() - position)


def list_tar(archive: Path) -> list[tuple[str, int, int]]:
    """Return (name, offset, size) of each file in an uncompressed tar; raises `DataError` as `unpack` does."""
    members, limit = [], _ExpansionLimit(archive)
    with _archive_errors(archive), tarfile.open(archive, "r:", tarinfo=_StrictTarInfo) as tar:
        for member in tar:
            limit.count(member.name, member.size)
            if not member.isdir():
                if not member.isreg():
                    raise _not_a_file(archive, member.name)
                members.append((_safe_name(member.name, archive), member.offset_data, member.size))
    return members


class ZipReader:
    """The selected members of a zip, checked as in `unpack`. Several threads may read at once.

    `paths` are the members' paths below the target folder, sorted.
    """

    def __init__(self, archive: Path, select: MemberFilter = keep_all) -> None:
        self._archive, self._limit = archive, _ExpansionLimit(archive)
        self._members: dict[str, zipfile.ZipInfo] = {}
        with _archive_errors(archive):
            self._zip = zipfile.ZipFile(archive)
            for member in self._zip.infolist():
                self._limit.count(member.filename, member.file_size)
                path = select(_safe_name(member.filename, archive))
                if path is None or member.is_dir():
                    continue
                file_type = stat.S_IFMT(member.external_attr >> 16)  # 0 if the zip was not written on Unix
                if file_type not in (0, stat.S_IFREG):
                    raise _not_a_file(archive, member.filename)
                if path in self._members:
                    raise _duplicate(archive, path)
                self._members[path] = member
        self.paths = sorted(self._members)

    def __enter__(self) -> "ZipReader":
        return self

    def __exit__(self, *exception: object) -> None:
        self._zip.close()

    def compressed_size(self, path: str) -> int:
        """Return how many bytes of the archive a member takes."""
        return self._members[path].compress_size

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """Open a member for reading; raises `DataError` if it is missing or damaged."""
        if path not in self._members:
            raise DataError(f"{self._archive} does not contain {path}: remove it and fetch it again.")
        with _archive_errors(self._archive), self._zip.open(self._members[path]) as source:
            yield source

    def read(self, path: str) -> bytes:
        """Return the content of a member; raises as `open` does."""
        with self.open(path) as source:
            return source.read()


class FileSlice(io.RawIOBase):
    """The `size` bytes of a file from `start` on, as a file of its own."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self._file, self._remaining, self._size = open(path, "rb"), size, size  # noqa: SIM115 - closed by close
        self._file.seek(start)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of the slice."""
        num_bytes = self._file.readinto(memoryview(buffer)[: self._remaining])
        self._remaining -= num_bytes
        return num_bytes

    def tell(self) -> int:
        """Return how many bytes of the slice have been read."""
        return self._size - self._remaining

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class _StrictTarInfo(tarfile.TarInfo):
    """A member that raises on a damaged header, which tarfile takes for the end, and on an overlong name."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        """Check each header, also those that tarfile of late reads without `frombuf`, before its data are read."""
        if not self.isreg() and not self.isdir() and self.size > _MAX_NAME_BYTES:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_StrictTarInfo":
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


class _ExpansionLimit:
    """How many bytes and entries an archive of a given size may expand to."""

    def __init__(self, archive: Path, size: int | None = None) -> None:
        size = archive.stat().st_size if size is None else size
        self._archive = archive
        self._bytes, self._entries = _MAX_RATIO * size + _EXTRA_BYTES, size // _MIN_ENTRY_BYTES + _EXTRA_ENTRIES

    def count(self, name: str, size: int) -> None:
        """Count an entry of `size` bytes; raises `DataError` beyond the limit."""
        self._bytes -= size
        self._entries -= 1
        if min(self._bytes, self._entries) < 0:
            raise DataError(
                f"{self._archive} expands to far more than an archive of its size should (at {name}): "
                "it is not a dataset; remove it."
            )


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _LimitedReader:
    """A file whose reads count towards a limit."""

    def __init__(self, file: _Readable, limit: _ExpansionLimit) -> None:
        self._file, self._limit = file, limit

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; raises `DataError` beyond the limit."""
        data = self._file.read(size)
        self._limit.count("its content", len(data))
        return data


def _unpack_zip(archive: Path, folder: Path, select: MemberFilter, count: ByteCounter) -> None:
    with ZipReader(archive, select) as members:
        remaining = archive.stat().st_size
        for path in members.paths:
            with members.open(path) as source:
                _write(source, folder / path, archive, count)
            count(members.compressed_size(path))
            remaining -= members.compressed_size(path)
        count(remaining)


@contextmanager
def _archive_errors(archive: Path) -> Iterator[None]:
    """Turn the errors of the archive modules into `DataError`."""
    try:
        yield
    except _DAMAGED as error:
        raise DataError(f"{archive} is damaged or not an archive ({error}): remove it and fetch it again.") from error
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # bz2 raises the first, a negative offset the second
            raise
        raise DataError(f"{archive} is damaged ({error}): remove it and fetch it again.") from error
    except RuntimeError as error:  # an encrypted zip
        raise DataError(f"{archive} cannot be unpacked ({error}): provide one without a password.") from error


def _write(source: _Readable, path: Path, archive: Path, count: ByteCounter) -> int:
    """Copy a member to `path` and return its size. `count` is called for each chunk, as it may raise `Stopped`."""
    size = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            while data := source.read(_CHUNK_BYTES):
                size += file.write(data)
                count(0)
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise _duplicate(archive, path.name) from error
    return size


def _safe_name(name: str, archive: Path) -> str:
    """Return a member's name as a path below the folder; raises `DataError` if it would leave the folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    has_unsafe_characters = any(ord(character) < 32 or character in "\\\x7f" for character in name)
    has_drive = len(name) > 1 and name[1] == ":"
    if name.startswith("/") or ".." in parts or has_unsafe_characters or has_drive:
        raise DataError(f"{archive} contains the name {name!r}, which leaves its folder: remove the archive.")
    return "/".join(parts)


def _not_a_file(archive: Path, name: str) -> DataError:
    return DataError(f"{archive} contains {name!r}, which is a link or a device: remove the archive.")


def _duplicate(archive: Path, name: str) -> DataError:
    return DataError(f"{archive} contains {name!r} twice: it is damaged or malicious; remove it.")
