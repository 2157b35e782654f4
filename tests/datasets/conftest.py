"""A local web server that can misbehave in many ways, and a dataset that it serves."""

import hashlib
import io
import random
import ssl
import tarfile
import threading
import time
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from timetrial.datasets.build.store import DatasetStore
from timetrial.datasets.download.transport import RetryPolicy
from timetrial.datasets.registry import catalog


class Server:
    """Serves `files` by path. `faults` are lists of functions by path; each replaces the answer to one request."""

    def __init__(self, tls=None):
        self.files, self.faults, self.asked = {}, {}, []
        self.closing = threading.Event()
        self._http = Quiet(("127.0.0.1", 0), type("Handler", (Handler,), {"file_server": self}))
        if tls:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.root = f"{'https' if tls else 'http'}://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def add(self, name, data, *faults):
        self.files[f"/{name}"], self.faults[f"/{name}"] = data, list(faults)
        return f"{self.root}/{name}"

    def ranges(self, name):
        """Return the Range header, or None, of each request for a file."""
        return [header for path, header in self.asked if path == f"/{name}"]

    def close(self):
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


class Quiet(ThreadingHTTPServer):
    """Ignores errors of clients that were killed."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        site = self.file_server
        site.asked.append((self.path, self.headers.get("Range")))
        faults = site.faults.get(self.path, [])
        with suppress(ConnectionError, TimeoutError):
            if faults:
                faults.pop(0)(self)
            else:
                self.answer()

    def answer(self, *, ranges=True, limit=None, data=None, headers=None):
        """Send the file or the requested range; with `limit`, close the connection after so many bytes."""
        data = self.file_server.files[self.path] if data is None else data
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
        """Send a byte now and then until the client disconnects."""
        data = self.file_server.files[self.path]
        self.say(200, {"Content-Length": str(len(data))})
        for byte in data:
            self.wfile.write(bytes([byte]))
            if self.file_server.closing.wait(0.05):
                return

    def hang(self, after=0):
        """Send some bytes and then nothing."""
        data = self.file_server.files[self.path]
        self.say(200, {"Content-Length": str(len(data)), "ETag": f'"{hashlib.md5(data).hexdigest()}"'})
        self.wfile.write(data[:after])
        self.file_server.closing.wait(60)
        self.drop()

    def drip(self, start, byte):
        """Send `start` and then the same byte again and again until the client disconnects."""
        self.wfile.write(start)
        while not self.file_server.closing.wait(0.05):
            self.wfile.write(byte)

    def log_message(self, *words):
        pass


@pytest.fixture
def server():
    site = Server()
    yield site
    site.close()


@pytest.fixture
def tls_server(monkeypatch):
    """A server with a certificate that this test trusts."""
    certificate = Path(__file__).with_name("download") / "localhost.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    site = Server(context)
    yield site
    site.close()


@pytest.fixture
def until():
    """Return a function that waits for a condition and fails after a timeout."""

    def wait(true, seconds=20.0):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "timed out"
            time.sleep(0.01)

    return wait


FAST_RETRIES = RetryPolicy(max_attempts=2, backoff_seconds=0.01, stall_seconds=0.5, min_progress_bytes=100)


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
PREPARED = IMAGES | {"val/words.txt": b"some words\n", "weights.pth": b"weights"}


class Place:
    """A folder of descriptions, a server of their files and a data folder. `prepared` is what `raw` is prepared to."""

    raw, prepared, zipped = RAW, PREPARED, staticmethod(zipped)

    def __init__(self, root, server):
        self.root, self.server, self.data = root, server, root / "data"
        (root / "sources").mkdir()
        self.reports = []

    def describe(self, name="toy", published=True, outputs=None, **changes):
        files = {}
        for file, data in RAW.items():
            self.server.add(file, data)
            entry = {"urls": [f"{self.server.root}/{file}"]}
            if published:
                entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            files[file] = entry | changes.get(file, {})
        files["images.zip"] |= {"strip_components": 1}
        files["texts.tgz"] |= {"strip_components": 1, "members": ["*.txt"]}
        words_md5 = hashlib.md5(b"some words\n").hexdigest()
        outputs = outputs or {"train": None, "val/words.txt": words_md5, "weights.pth": None}
        description = {"title": name, "used_by": "a test", "homepage": "https://there/"}
        description |= {"license": "CC0", "license_url": "x"}
        text = yaml.safe_dump(description | {"files": files, "outputs": outputs})
        (self.root / "sources" / f"{name}.yaml").write_text(text)
        return catalog.read(self.root / "sources")[name]

    def store(self):
        return DatasetStore(self.data, 2, lambda *report: self.reports.append(report), FAST_RETRIES)

    def get(self, *sources, origin=None):
        store = self.store()
        with store.lock():
            store.fetch(sources, origin)
            for source in sources:
                store.prepare(source)
        return store

    @staticmethod
    def found(folder):
        """Return the files of a dataset by path, without its manifest."""
        paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".manifest")
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def place(tmp_path, server):
    return Place(tmp_path, server)
