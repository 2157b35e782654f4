"""Whatever a server does, a file is complete or the error is one sentence, and no byte is fetched twice."""

import hashlib
import random
import threading

import pytest

from timetrial.datasets.download.transport import RetryPolicy, Transport
from timetrial.datasets.registry.catalog import RawFile
from timetrial.runner.core.errors import DataError, Exit, Stopped
from timetrial.runner.core.progress import no_progress

DATA = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(300_000)
FAST_RETRIES = RetryPolicy(
    max_attempts=3, backoff_seconds=0.01, stall_seconds=0.4, stall_bytes=1000, min_progress_bytes=1000
)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "downloads" / "file.bin"


def drop_after(num_bytes):
    return lambda request: request.answer(limit=num_bytes)


def status(code, **headers):
    return lambda request: request.say(code, {"Content-Length": "0"} | headers)


def answer_other_file(request):
    request.file_server.files[request.path] = OTHER
    request.answer()


def ignore_ranges(request):
    request.answer(ranges=False)


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


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize(
    "faults",
    [
        [],
        [drop_after(100_000), drop_after(50_000), drop_after(1)],
        [drop_after(0)],
        [status(503), status(429), drop_after(70_000), status(500)],
        [status(503, **{"Retry-After": "0"})],
        [status(503, **{"Retry-After": "tomorrow"})],
        [drop_after(100_000), ignore_ranges],
        [lambda request: request.hang(after=100_000)],
        [lambda request: request.trickle()],
        [redirect("elsewhere.bin")],
    ],
)
def test_retries_transient_errors(server, place, faults, published):
    url = server.add("file.bin", DATA, *faults)
    server.add("elsewhere.bin", DATA)
    assert fetch(with_checksum(url) if published else without_checksum(url), place) == DATA


def test_resumes_with_range_requests(server, place):
    url = server.add("file.bin", DATA, drop_after(100_000), drop_after(50_000))
    fetch(with_checksum(url), place)
    assert server.ranges("file.bin") == [None, "bytes=100000-", "bytes=150000-"]


def test_parts_are_not_joined_without_version_or_checksum(server, place):
    def nameless(request):
        request.answer(limit=100_000, headers={"ETag": None})

    assert fetch(without_checksum(server.add("file.bin", DATA, nameless, nameless)), place) == DATA
    assert server.ranges("file.bin") == [None, None, None]


@pytest.mark.parametrize("published", [True, False])
def test_later_call_continues(server, place, published):
    url = server.add("file.bin", DATA, *[drop_after(90_000), status(404)])
    file = with_checksum(url) if published else without_checksum(url)
    assert_rejected(file, place, "127.0.0.1 answers 404")
    assert place.with_name("file.bin.part").stat().st_size == 90_000
    assert fetch(file, place) == DATA
    assert server.ranges("file.bin")[-1] == "bytes=90000-"


@pytest.mark.parametrize("state", ["", "{}", "[]", '{"url": "x", "version": "", "total": 12}'])
def test_part_without_valid_state_is_discarded(server, place, state):
    place.parent.mkdir()
    place.with_name("file.bin.part").write_bytes(b"wrong" * 100)
    place.with_name("file.bin.part.json").write_text(state)
    assert fetch(without_checksum(server.add("file.bin", DATA)), place) == DATA


def test_complete_part_is_used_without_a_request(server, place):
    url = server.add("file.bin", DATA, drop_after(200_000), status(404))
    assert_rejected(with_checksum(url), place, "404")
    with open(place.with_name("file.bin.part"), "ab") as part:
        part.write(DATA[200_000:])
    assert fetch(with_checksum(url), place) == DATA
    assert len(server.ranges("file.bin")) == 2


def tagged(request):
    changed_part(request, {"ETag": '"another"'})


def untagged(request):
    changed_part(request, {})


@pytest.mark.parametrize(
    ("answer", "published"), [(answer_other_file, False), (tagged, False), (tagged, True), (untagged, True)]
)
def test_file_that_changes_between_ranges_is_fetched_again(server, place, answer, published):
    url = server.add("file.bin", DATA, drop_after(100_000), answer)
    assert fetch(with_checksum(url, data=OTHER) if published else without_checksum(url), place) == OTHER


def changed_part(request, headers):
    """Send the rest of another file, as a server does that ignores If-Range."""
    request.file_server.files[request.path] = OTHER
    first = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
    length = {"Content-Length": str(len(OTHER) - first)}
    request.say(206, headers | length | {"Content-Range": f"bytes {first}-{len(OTHER) - 1}/{len(OTHER)}"})
    request.wfile.write(OTHER[first:])


def test_file_that_shrinks_between_ranges_is_fetched_again(server, place):
    def shrink(request):
        request.file_server.files[request.path] = DATA[:50_000]
        request.say(416, {"Content-Length": "0"})

    assert fetch(without_checksum(server.add("file.bin", DATA, drop_after(100_000), shrink)), place) == DATA[:50_000]


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([drop_after(10)] * 9, "closes the connection.*3 times in a row"),
        ([status(503)] * 9, "answers 503, 3 times in a row"),
        ([status(404)], "answers 404"),
        ([lambda request: request.hang()] * 9, "sends hardly anything, 3 times in a row"),
        ([lambda request: request.hang(after=500)] * 9, "sends hardly anything, 3 times in a row"),
        ([lambda request: request.answer(data=DATA[:-1])], "offers 299,999 bytes, not 300,000"),
        ([lambda request: request.answer(data=OTHER)], "has a file with the sha256 [0-9a-f]{64}, not [0-9a-f]{64}"),
        ([lambda request: request.answer(headers={"Content-Type": "text/html"})], "answers with a web page"),
        ([redirect("file.bin")] * 9, "redirects too often"),
        ([redirect("ftp://elsewhere/file.bin")] * 9, "redirects to an address that is neither http nor https"),
        (
            [lambda request: request.say(206, {"Content-Length": "3"})] * 9,
            "sends a part of the file without its position",
        ),
        (
            [drop_after(100_000), lambda request: request.answer(ranges=False, limit=90_000)] * 9,
            "closes the connection",
        ),
        ([lambda request: endless(request)] * 9, "sends more than 300,000 bytes"),
    ],
)
def test_reports_permanent_errors_in_one_sentence(server, place, faults, message):
    assert_rejected(with_checksum(server.add("file.bin", DATA, *faults)), place, f"127.0.0.1 .*{message}")


def endless(request):
    """Send chunks without end."""
    request.say(200, {"Transfer-Encoding": "chunked"})
    while not request.file_server.closing.is_set():
        request.wfile.write(b"8000\r\n" + bytes(0x8000) + b"\r\n")


def test_rejects_file_without_length_and_checksum(server, place):
    def unbounded(request):
        request.say(200, {"Content-Length": None, "Connection": "close"})
        request.wfile.write(DATA)
        request.drop()

    assert_rejected(
        without_checksum(server.add("file.bin", DATA, unbounded)), place, "does not send the length of the file"
    )
    assert fetch(with_checksum(server.add("file.bin", DATA, unbounded)), place) == DATA


def test_chunked_responses_mark_their_end(server, place):
    def chunked(request):
        request.say(200, {"Transfer-Encoding": "chunked"})
        request.wfile.write(
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (DATA[:9], DATA[9:])) + b"0\r\n\r\n"
        )

    def broken(request):
        request.say(200, {"Transfer-Encoding": "chunked"})
        request.wfile.write(b"9\r\n" + DATA[:9])
        request.drop()

    assert fetch(without_checksum(server.add("file.bin", DATA, broken, chunked)), place) == DATA


def test_md5_is_used_where_only_it_is_published(server, place):
    url = server.add("file.bin", DATA, drop_after(100_000))
    assert fetch(RawFile("file.bin", (url,), md5=hashlib.md5(DATA).hexdigest()), place) == DATA
    place.unlink()
    assert_rejected(
        RawFile("file.bin", (url,), md5="0" * 32), place, f"has a file with the md5 {hashlib.md5(DATA).hexdigest()}"
    )


def test_tries_mirrors_in_order_and_names_all_failures(server, place):
    bad, wrong, good = (server.add(name, data) for name, data in (("1", DATA), ("2", OTHER), ("3", DATA)))
    server.faults["/1"] = [status(404)]
    closed = "http://127.0.0.1:9/file.bin"
    assert fetch(with_checksum(closed, bad, wrong, good), place) == DATA
    place.unlink()
    server.faults["/1"] = [status(404)]
    assert_rejected(
        with_checksum(closed, bad, wrong),
        place,
        r"cannot be reached, 3 times in a row; .*answers 404; .*has a file with",
    )


def test_mirror_continues_the_part_of_another(server, place):
    first = server.add("1", DATA, drop_after(100_000), status(404))
    assert fetch(with_checksum(first, server.add("2", DATA)), place) == DATA
    assert server.ranges("2") == ["bytes=100000-"]
    place.unlink()
    first = server.add("1", DATA, drop_after(100_000), status(404))  # without a checksum it must come from one server
    assert fetch(without_checksum(first, server.add("2", OTHER)), place) == OTHER


def test_file_is_fetched_again_if_joined_parts_fail_verification(server, place):
    place.parent.mkdir()
    url = server.add("file.bin", DATA)
    place.with_name("file.bin.part").write_bytes(OTHER[:1000])
    place.with_name("file.bin.part.json").write_text(f'{{"url": "{url}", "version": "", "total": {len(DATA)}}}')
    assert fetch(with_checksum(url), place) == DATA
    assert server.ranges("file.bin") == ["bytes=1000-", None]


def test_uses_proxy_of_the_environment(server, place, monkeypatch):
    monkeypatch.setenv("http_proxy", server.root.replace("//", "//name:word@"))
    monkeypatch.delenv("no_proxy", raising=False)
    seen = []

    def proxied(request):
        seen.append(request.headers["Proxy-Authorization"])
        request.answer(data=DATA)

    server.faults["http://elsewhere.test/file.bin"] = [proxied]
    assert fetch(with_checksum("http://elsewhere.test/file.bin"), place) == DATA
    assert seen[0].startswith("Basic ")


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
    file, raised = with_checksum(server.add("file.bin", DATA, answer)), []

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
    assert fetch(file, place) == DATA
    assert server.ranges("file.bin") == [None, "bytes=100000-" if answer is slow_body else None]


@pytest.mark.parametrize("answer", SLOW_ANSWERS)
@pytest.mark.parametrize("fixture", ["server", "tls_server"])
def test_stalled_answers_have_a_deadline(request, fixture, answer, place):
    server = request.getfixturevalue(fixture)
    url = server.add("file.bin", DATA, *[answer] * 9)
    assert_rejected(with_checksum(url), place, "sends hardly anything, 3 times in a row")


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (status(302, Location="http://[::1"), "redirects to an address that is not valid"),
        (status(302, Location="http://" + "a" * 70 + "/"), "127.0.0.1"),
        (status(503, **{"Retry-After": HUGE}), "answers 503, 3 times in a row"),
        (status(503, **{"Retry-After": "Thu, 01 Jan 99999 00:00:00 GMT"}), "answers 503, 3 times in a row"),
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

    for file in (with_checksum(url := server.add("file.bin", DATA)), without_checksum(url)):
        server.faults["/file.bin"] = [drop_afterwards] * 9
        assert_rejected(file, place, message)


@pytest.mark.parametrize("path", ["https http", "https http https", "http https http https", "https https http"])
def test_no_hop_leaves_https_for_http(server, tls_server, place, path):
    schemes = path.split()
    sites = [{"http": server, "https": tls_server}[scheme] for scheme in schemes]
    urls = [site.add(f"{number}.bin", DATA) for number, site in enumerate(sites)]
    for number, url in enumerate(urls[1:]):
        sites[number].faults[f"/{number}.bin"] = [redirect(url)]
    assert_rejected(with_checksum(urls[0]), place, "redirects to a URL without encryption")
    refused = next(number for number in range(1, len(sites)) if schemes[number - 1 : number + 1] == ["https", "http"])
    asked = [path for site in (server, tls_server) for path, _ in site.asked]
    assert sorted(asked) == [f"/{number}.bin" for number in range(refused)]


def test_redirect_from_http_to_https_is_followed(server, tls_server, place):
    encrypted = tls_server.add("1.bin", DATA)
    assert fetch(with_checksum(server.add("0.bin", DATA, redirect(encrypted))), place) == DATA


def test_unknown_certificate_is_rejected(tls_server, place, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    assert_rejected(with_checksum(tls_server.add("file.bin", DATA)), place, "has no valid certificate")


def test_reports_unwritable_path_in_one_sentence(server, place):
    place.parent.write_text("no folder")
    message = r"^Cannot write .*file\.bin \(.*\): set --data-dir\.$"
    with pytest.raises(DataError, match=message):
        Transport(FAST_RETRIES).fetch(with_checksum(server.add("file.bin", DATA)), place, no_progress)
