"""A web server on this machine that does everything wrong that it is asked to, and a set that it serves."""

import hashlib
import io
import random
import tarfile
import threading
import time
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from timetrial.datasets.build.store import Store
from timetrial.datasets.download.transport import Patience
from timetrial.datasets.registry import catalog


class Server:
    """`files` by path; `faults` by path: functions of a request, one after the other, each in place of an answer."""

    def __init__(self):
        self.files, self.faults, self.asked = {}, {}, []
        self.closing = threading.Event()
        self._http = Quiet(("127.0.0.1", 0), type("Handler", (Handler,), {"server_of_files": self}))
        self.root = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def add(self, name, data, *faults):
        self.files[f"/{name}"], self.faults[f"/{name}"] = data, list(faults)
        return f"{self.root}/{name}"

    def ranges(self, name):
        """What was asked of a file, request by request: the Range header or None."""
        return [header for path, header in self.asked if path == f"/{name}"]

    def close(self):
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


class Quiet(ThreadingHTTPServer):
    """Says nothing of clients that were killed."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        site = self.server_of_files
        site.asked.append((self.path, self.headers.get("Range")))
        faults = site.faults.get(self.path, [])
        with suppress(ConnectionError, TimeoutError):
            if faults:
                faults.pop(0)(self)
            else:
                self.answer()

    def answer(self, *, ranges=True, limit=None, data=None, headers=None):
        """The file, or the part asked for; of the body only `limit` bytes, after which the connection breaks."""
        data = self.server_of_files.files[self.path] if data is None else data
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        asked = self.headers.get("Range")
        if asked and self.headers.get("If-Range", tag) != tag:
            asked = None
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and ranges else 0
        if asked and ranges and first >= len(data):
            self.say(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"})
            return
        said = {"ETag": tag, "Content-Length": str(len(data) - first)}
        if asked and ranges:
            said["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.say(206 if asked and ranges else 200, said | (headers or {}))
        self.wfile.write(data[first:] if limit is None else data[first : first + limit])
        if limit is not None:
            self.drop()

    def say(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()

    def drop(self):
        self.close_connection = True

    def trickle(self):
        """A byte now and then, for as long as somebody listens."""
        data = self.server_of_files.files[self.path]
        self.say(200, {"Content-Length": str(len(data))})
        for byte in data:
            self.wfile.write(bytes([byte]))
            if self.server_of_files.closing.wait(0.05):
                return

    def hang(self, after=0):
        """Some bytes and then nothing."""
        data = self.server_of_files.files[self.path]
        self.say(200, {"Content-Length": str(len(data)), "ETag": f'"{hashlib.md5(data).hexdigest()}"'})
        self.wfile.write(data[:after])
        self.server_of_files.closing.wait(60)
        self.drop()

    def log_message(self, *words):
        pass


@pytest.fixture
def server():
    site = Server()
    yield site
    site.close()


@pytest.fixture
def until():
    """Waits for something to become true, and fails where it does not."""

    def wait(true, seconds=20.0):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it did not come true"
            time.sleep(0.01)

    return wait


HASTY = Patience(attempts=2, rest_seconds=0.01, stall_seconds=0.5, progress=100)


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def tarred(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


IMAGES = {f"train/{number}.jpg": random.Random(number).randbytes(200) for number in range(30)}
RAW = {
    "images.zip": zipped({f"set-1/{name}": data for name, data in IMAGES.items()}),
    "texts.tgz": tarred({"set-1/val/words.txt": b"some words\n", "set-1/val/left.out": b"?"}),
    "weights.pth": b"weights",
}
WHOLE = IMAGES | {"val/words.txt": b"some words\n", "weights.pth": b"weights"}


class Place:
    """A folder of descriptions, a server of what they describe, and a data folder; `whole` is what `raw` becomes."""

    raw, whole, zipped = RAW, WHOLE, staticmethod(zipped)

    def __init__(self, root, server):
        self.root, self.server, self.data = root, server, root / "data"
        (root / "sources").mkdir()
        self.told = []

    def describe(self, name="toy", published=True, makes=None, **changes):
        files = {}
        for file, data in RAW.items():
            self.server.add(file, data)
            facts = {"urls": [f"{self.server.root}/{file}"]}
            if published:
                facts |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            files[file] = facts | changes.get(file, {})
        files["images.zip"] |= {"strip": 1}
        files["texts.tgz"] |= {"strip": 1, "members": ["*.txt"]}
        makes = makes or {"train": None, "val/words.txt": hashlib.md5(b"some words\n").hexdigest(), "weights.pth": None}
        facts = {"title": name, "serves": "a test", "page": "https://there/", "licence": "CC0", "licence_url": "x"}
        text = yaml.safe_dump(facts | {"files": files, "makes": makes})
        (self.root / "sources" / f"{name}.yaml").write_text(text)
        return catalog.read(self.root / "sources")[name]

    def store(self):
        return Store(self.data, 2, lambda *words: self.told.append(words), HASTY)

    def get(self, *sources, given=None):
        store = self.store()
        with store.held():
            store.fetch(sources, given)
            for source in sources:
                store.prepare(source)
        return store

    @staticmethod
    def found(folder):
        """The files of a set without its receipt."""
        paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".receipt")
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def place(tmp_path, server):
    return Place(tmp_path, server)
