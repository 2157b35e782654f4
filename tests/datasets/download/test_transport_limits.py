"""Answers that never end, malformed headers, and addresses that are not to be trusted."""

import importlib.util
import threading
from pathlib import Path

import pytest

from timetrial.datasets.download.transport import RetryPolicy, Transport
from timetrial.runner.core.errors import DataError, Exit, Stopped
from timetrial.runner.core.progress import no_progress

spec = importlib.util.spec_from_file_location("downloads", Path(__file__).with_name("downloads.py"))
downloads = importlib.util.module_from_spec(spec)
spec.loader.exec_module(downloads)


def slow_header(request):
    request.drip(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a")


def slow_chunk_size(request):
    request.drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0")


def slow_body(request):
    request.hang(after=100_000)


SLOW_ANSWERS = [slow_header, slow_chunk_size, slow_body]


@pytest.mark.parametrize("answer", SLOW_ANSWERS)
@pytest.mark.parametrize("fixture", ["server", "tls_server"])
def test_stop_ends_every_wait_and_keeps_what_has_arrived(request, fixture, answer, place, until):
    server = request.getfixturevalue(fixture)
    transport = Transport(RetryPolicy(stall_seconds=60))
    file, raised = downloads.with_checksum(server.add("file.bin", downloads.DATA, answer)), []

    def work():
        try:
            transport.fetch(file, place, no_progress)
        except Stopped as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    part = place.with_name("file.bin.part")
    if answer is slow_body:
        until(lambda: part.exists() and part.stat().st_size == 100_000)
    else:
        until(lambda: server.asked)
    transport.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert raised[0].exit_code == Exit.STOPPED
    assert downloads.fetch(file, place) == downloads.DATA
    assert server.ranges("file.bin") == [None, "bytes=100000-" if answer is slow_body else None]


@pytest.mark.parametrize("answer", SLOW_ANSWERS)
@pytest.mark.parametrize("fixture", ["server", "tls_server"])
def test_stalled_answers_have_a_deadline(request, fixture, answer, place):
    server = request.getfixturevalue(fixture)
    url = server.add("file.bin", downloads.DATA, *[answer] * 9)
    downloads.assert_rejected(downloads.with_checksum(url), place, "sends hardly anything, 3 times in a row")


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (downloads.status(302, Location="http://[::1"), "redirects to an address that is not valid"),
        (downloads.status(302, Location="http://" + "a" * 70 + "/"), "127.0.0.1"),
        (downloads.status(503, **{"Retry-After": HUGE}), "answers 503, 3 times in a row"),
        (downloads.status(503, **{"Retry-After": "Thu, 01 Jan 99999 00:00:00 GMT"}), "answers 503, 3 times in a row"),
        (lambda request: request.say(200, {"Content-Length": HUGE}), "127.0.0.1"),
        (lambda request: request.say(206, {"Content-Range": f"bytes {HUGE}-{HUGE}/{HUGE}"}), "without its position"),
        (lambda request: request.say(200, {"Transfer-Encoding": "chunked"} | {f"X-{n}": "" for n in range(200)}), "v"),
        (lambda request: request.wfile.write(b"HTTP/9.9 what\r\n\r\n"), "sends no valid response"),
    ],
)
def test_malformed_headers_are_one_sentence(server, place, answer, message):
    def drop_afterwards(request):
        answer(request)
        request.drop()

    for file in (
        downloads.with_checksum(url := server.add("file.bin", downloads.DATA)),
        downloads.without_checksum(url),
    ):
        server.faults["/file.bin"] = [drop_afterwards] * 9
        downloads.assert_rejected(file, place, message)


@pytest.mark.parametrize("path", ["https http", "https http https", "http https http https", "https https http"])
def test_no_hop_leaves_https_for_http(server, tls_server, place, path):
    schemes = path.split()
    sites = [{"http": server, "https": tls_server}[scheme] for scheme in schemes]
    urls = [site.add(f"{number}.bin", downloads.DATA) for number, site in enumerate(sites)]
    for number, url in enumerate(urls[1:]):
        sites[number].faults[f"/{number}.bin"] = [downloads.redirect(url)]
    downloads.assert_rejected(downloads.with_checksum(urls[0]), place, "redirects to a URL without encryption")
    refused = next(number for number in range(1, len(sites)) if schemes[number - 1 : number + 1] == ["https", "http"])
    asked = [path for site in (server, tls_server) for path, _ in site.asked]
    assert sorted(asked) == [f"/{number}.bin" for number in range(refused)]


def test_redirect_from_http_to_https_is_followed(server, tls_server, place):
    encrypted = tls_server.add("1.bin", downloads.DATA)
    assert (
        downloads.fetch(
            downloads.with_checksum(server.add("0.bin", downloads.DATA, downloads.redirect(encrypted))), place
        )
        == downloads.DATA
    )


def test_unknown_certificate_is_rejected(tls_server, place, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    downloads.assert_rejected(
        downloads.with_checksum(tls_server.add("file.bin", downloads.DATA)), place, "has no valid certificate"
    )


def test_reports_unwritable_path_in_one_sentence(server, place):
    place.parent.write_text("no folder")
    message = r"^Cannot write .*file\.bin \(.*\): set --data-dir\.$"
    with pytest.raises(DataError, match=message):
        Transport(downloads.FAST_RETRIES).fetch(
            downloads.with_checksum(server.add("file.bin", downloads.DATA)), place, no_progress
        )
