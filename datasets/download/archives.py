"""Archives unpacked safely: nothing leaves the folder, nothing but plain files comes out, and not without end."""

import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from ...runner.core.errors import DataError

_CHUNK = 1 << 20  # bytes that are read at a time
_BUFFER = 1 << 16  # the same for tars: of a larger one tarfile copies what is left for each member
# More than this is no data set's archive: text shrinks to a quarter, photographs not at all.
_GROWTH, _GROWTH_BEYOND = 20, 1 << 24  # bytes that come out for each that went in, and so many more
_BYTES_AN_ENTRY, _ENTRIES_BEYOND = 100, 1000  # the shortest entry that a zip can have; a tar's is longer
_LONGEST_NAME = 1 << 16  # bytes of a tar's header for a long name
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)

Where = Callable[[str], str | None]  # for a member's name its place below the folder, or None to leave it
Step = Callable[[int], None]  # takes how many more bytes of the archive have been dealt with


def everything(name: str) -> str | None:
    """A member's own name: all are wanted."""
    return name


def unpack(archive: Path, folder: Path, where: Where = everything, step: Step = lambda _: None) -> None:
    """Unpacks a tar (also compressed), zip, or single .gz below `folder`; another file is copied there as it is.

    Raises `DataError` for one that is damaged, has a name that leaves the folder, something that is neither file nor
    folder, a name twice, or that unpacks to more than an archive of its size should. What has been unpacked by then
    stays: whoever calls has a folder to throw away.
    """
    name = archive.name.lower()
    with _refusing(archive):
        if name.endswith(".zip"):
            with Zip(archive, where) as members:
                left = archive.stat().st_size
                for place in members.places:
                    with members.open(place) as source:
                        _write(source, folder / place, archive, step)
                    step(members.packed(place))
                    left -= members.packed(place)
                step(left)
        elif name.endswith((".tar", ".tar.gz", ".tgz")):
            with open(archive, "rb") as file:
                unpack_tar(file, archive, archive.stat().st_size, folder, where, step)
        else:
            with open(archive, "rb") as file:
                plain = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
                place = where(archive.name.removesuffix(".gz")) or archive.name
                _write(_Meter(plain, _Limit(archive)), folder / place, archive, step)
            step(archive.stat().st_size)


def unpack_tar(file: "IO[bytes] | Slice", archive: Path, size: int, folder: Path, where: Where, step: Step) -> None:
    """Unpacks the tar, compressed or not, of `size` bytes that can be read from `file`, as `unpack` does."""
    limit, done = _Limit(archive, size), 0
    packed = gzip.GzipFile(fileobj=file) if archive.name.lower().endswith(("gz", "tgz")) else file
    with _refusing(archive), tarfile.open(fileobj=packed, mode="r|", tarinfo=_Member, bufsize=_BUFFER) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # a million of them are a gigabyte
            limit.count(member.name, tarfile.BLOCKSIZE + member.size)
            place = where(_safe(member.name, archive))
            if place is None or member.isdir():
                continue
            if not member.isreg():
                raise _strange(archive, member.name)
            source = tar.extractfile(member)
            assert source is not None  # it is a plain file
            if _write(source, folder / place, archive, step) != member.size:
                raise EOFError("it ends early")
            step(file.tell() - done)
            done = file.tell()
        while packed.read(_CHUNK):  # to where the checksum of a compressed one stands
            pass
        step(file.tell() - done)


def index(archive: Path) -> list[tuple[str, int, int]]:
    """Name, first byte and bytes of each file in an uncompressed tar; raises `DataError` as `unpack` does."""
    found, limit = [], _Limit(archive)
    with _refusing(archive), tarfile.open(archive, "r:", tarinfo=_Member) as tar:
        for member in tar:
            limit.count(member.name, member.size)
            if not member.isdir():
                if not member.isreg():
                    raise _strange(archive, member.name)
                found.append((_safe(member.name, archive), member.offset_data, member.size))
    return found


class Zip:
    """The wanted members of a zip, checked as `unpack` does; several threads may read at once."""

    def __init__(self, archive: Path, where: Where = everything) -> None:
        self._archive, self._limit = archive, _Limit(archive)
        self._members: dict[str, zipfile.ZipInfo] = {}
        with _refusing(archive):
            self._zip = zipfile.ZipFile(archive)
            for member in self._zip.infolist():
                self._limit.count(member.filename, member.file_size)
                place = where(_safe(member.filename, archive))
                if place is None or member.is_dir():
                    continue
                kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where no Unix has packed it
                if kind not in (0, stat.S_IFREG):
                    raise _strange(archive, member.filename)
                if place in self._members:
                    raise _twice(archive, place)
                self._members[place] = member
        self.places = sorted(self._members)

    def __enter__(self) -> "Zip":
        return self

    def __exit__(self, *exception: object) -> None:
        self._zip.close()

    def packed(self, place: str) -> int:
        """How many bytes of the archive a member takes."""
        return self._members[place].compress_size

    @contextmanager
    def open(self, place: str) -> Iterator[IO[bytes]]:
        """A member to be read; raises `DataError` where it is missing or damaged."""
        if place not in self._members:
            raise DataError(f"{self._archive} lacks {place}: remove it and fetch it again.")
        with _refusing(self._archive), self._zip.open(self._members[place]) as source:
            yield source

    def read(self, place: str) -> bytes:
        """A whole member; raises as `open` does."""
        with self.open(place) as source:
            return source.read()


class Slice(io.RawIOBase):
    """A part of a file, from `start` on and `size` bytes long, as a file of its own."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self._file, self._left, self._size = open(path, "rb"), size, size  # noqa: SIM115 - closed by close
        self._file.seek(start)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads up to what is left."""
        count = self._file.readinto(memoryview(buffer)[: self._left])
        self._left -= count
        return count

    def tell(self) -> int:
        """How much of the part has been read."""
        return self._size - self._left

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()


class _Member(tarfile.TarInfo):
    """A member, or an error where tarfile would take a bad header for the end, or read a name without end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if not member.isreg() and not member.isdir() and member.size > _LONGEST_NAME:
            raise tarfile.ReadError(f"a header of {member.size:,} bytes")
        return member

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


class _Limit:
    """How much may come out of an archive of its size."""

    def __init__(self, archive: Path, size: int | None = None) -> None:
        size = archive.stat().st_size if size is None else size
        self._archive = archive
        self._bytes, self._entries = _GROWTH * size + _GROWTH_BEYOND, size // _BYTES_AN_ENTRY + _ENTRIES_BEYOND

    def count(self, name: str, size: int) -> None:
        """Raises `DataError` once more has come than may."""
        self._bytes -= size
        self._entries -= 1
        if min(self._bytes, self._entries) < 0:
            raise DataError(
                f"{self._archive} unpacks to far more than an archive of its size should ({name} is one too many): "
                "it is no data set; remove it."
            )


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Meter:
    """Counts what is read."""

    def __init__(self, file: _Readable, limit: _Limit) -> None:
        self._file, self._limit = file, limit

    def read(self, size: int) -> bytes:
        """Reads on; raises `DataError` beyond the limit."""
        data = self._file.read(size)
        self._limit.count("its content", len(data))
        return data


@contextmanager
def _refusing(archive: Path) -> Iterator[None]:
    """One sentence for whatever is wrong with an archive."""
    try:
        yield
    except _DAMAGED as error:
        raise DataError(f"{archive} is damaged or no archive ({error}): remove it and fetch it again.") from error
    except RuntimeError as error:  # a zip with a password
        raise DataError(f"{archive} cannot be unpacked ({error}): bring one without a password.") from error


def _write(source: _Readable, place: Path, archive: Path, step: Step) -> int:
    """Copies a member to its place; returns its bytes. Calls `step`, which may want to stop, at every chunk."""
    size = 0
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "xb") as file:
            while data := source.read(_CHUNK):
                size += file.write(data)
                step(0)
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise _twice(archive, place.name) from error
    return size


def _safe(name: str, archive: Path) -> str:
    """The name of a member as a path below the folder; raises `DataError` where it would leave it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    odd = any(ord(letter) < 32 or letter in "\\\x7f" for letter in name)
    if name.startswith("/") or ".." in parts or odd or (len(name) > 1 and name[1] == ":"):
        raise DataError(f"{archive} holds the name {name!r}, which leads out of its folder: remove the archive.")
    return "/".join(parts)


def _strange(archive: Path, name: str) -> DataError:
    return DataError(f"{archive} holds {name!r}, which is a link or a device and no file: remove the archive.")


def _twice(archive: Path, name: str) -> DataError:
    return DataError(f"{archive} holds {name!r} twice: it is damaged or hostile; remove it.")
