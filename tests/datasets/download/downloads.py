"""Files to download, what servers answer instead, and the checks of what was fetched."""

import hashlib
import random

import pytest

from timetrial.datasets.download.transport import RetryPolicy, Transport
from timetrial.datasets.registry.catalog import RawFile
from timetrial.runner.core.errors import DataError, Exit
from timetrial.runner.core.progress import no_progress

DATA = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(300_000)
FAST_RETRIES = RetryPolicy(
    max_attempts=3, backoff_seconds=0.01, stall_seconds=0.4, stall_bytes=1000, min_progress_bytes=1000
)


def drop_after(num_bytes):
    return lambda request: request.answer(limit=num_bytes)


def status(code, **headers):
    return lambda request: request.say(code, {"Content-Length": "0"} | headers)


def redirect(to):
    return status(302, Location=to)


def with_checksum(*urls, data=DATA, **facts):
    return RawFile("file.bin", urls, len(data), sha256=hashlib.sha256(data).hexdigest(), **facts)


def without_checksum(*urls):
    return RawFile("file.bin", urls)


def fetch(file, place, retry=FAST_RETRIES):
    """Return what was fetched; check that no other files are left and that the returned SHA-256 is right."""
    digest = Transport(retry).fetch(file, place, no_progress)
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    assert hashlib.sha256(place.read_bytes()).hexdigest() == digest
    return place.read_bytes()


def assert_rejected(file, place, message, retry=FAST_RETRIES):
    with pytest.raises(DataError, match=message) as caught:
        Transport(retry).fetch(file, place, no_progress)
    assert caught.value.exit_code == Exit.DATA
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("--from.")
    assert not place.exists()
