"""Whatever a server does, a file is complete or the error is one sentence, and no byte is fetched twice."""

import hashlib
import importlib.util
from pathlib import Path

import pytest

from timetrial.datasets.registry.catalog import RawFile

spec = importlib.util.spec_from_file_location("downloads", Path(__file__).with_name("downloads.py"))
downloads = importlib.util.module_from_spec(spec)
spec.loader.exec_module(downloads)


def answer_other_file(request):
    request.file_server.files[request.path] = downloads.OTHER
    request.answer()


def ignore_ranges(request):
    request.answer(ranges=False)


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize(
    "faults",
    [
        [],
        [downloads.drop_after(100_000), downloads.drop_after(50_000), downloads.drop_after(1)],
        [downloads.drop_after(0)],
        [downloads.status(503), downloads.status(429), downloads.drop_after(70_000), downloads.status(500)],
        [downloads.status(503, **{"Retry-After": "0"})],
        [downloads.status(503, **{"Retry-After": "tomorrow"})],
        [downloads.drop_after(100_000), ignore_ranges],
        [lambda request: request.hang(after=100_000)],
        [lambda request: request.trickle()],
        [downloads.redirect("elsewhere.bin")],
    ],
)
def test_retries_transient_errors(server, place, faults, published):
    url = server.add("file.bin", downloads.DATA, *faults)
    server.add("elsewhere.bin", downloads.DATA)
    assert (
        downloads.fetch(downloads.with_checksum(url) if published else downloads.without_checksum(url), place)
        == downloads.DATA
    )


def test_resumes_with_range_requests(server, place):
    url = server.add("file.bin", downloads.DATA, downloads.drop_after(100_000), downloads.drop_after(50_000))
    downloads.fetch(downloads.with_checksum(url), place)
    assert server.ranges("file.bin") == [None, "bytes=100000-", "bytes=150000-"]


def test_parts_are_not_joined_without_version_or_checksum(server, place):
    def nameless(request):
        request.answer(limit=100_000, headers={"ETag": None})

    assert (
        downloads.fetch(downloads.without_checksum(server.add("file.bin", downloads.DATA, nameless, nameless)), place)
        == downloads.DATA
    )
    assert server.ranges("file.bin") == [None, None, None]


@pytest.mark.parametrize("published", [True, False])
def test_later_call_continues(server, place, published):
    url = server.add("file.bin", downloads.DATA, *[downloads.drop_after(90_000), downloads.status(404)])
    file = downloads.with_checksum(url) if published else downloads.without_checksum(url)
    downloads.assert_rejected(file, place, "127.0.0.1 answers 404")
    assert place.with_name("file.bin.part").stat().st_size == 90_000
    assert downloads.fetch(file, place) == downloads.DATA
    assert server.ranges("file.bin")[-1] == "bytes=90000-"


@pytest.mark.parametrize("state", ["", "{}", "[]", '{"url": "x", "version": "", "total": 12}'])
def test_part_without_valid_state_is_discarded(server, place, state):
    place.parent.mkdir()
    place.with_name("file.bin.part").write_bytes(b"wrong" * 100)
    place.with_name("file.bin.part.json").write_text(state)
    assert downloads.fetch(downloads.without_checksum(server.add("file.bin", downloads.DATA)), place) == downloads.DATA


def test_complete_part_is_used_without_a_request(server, place):
    url = server.add("file.bin", downloads.DATA, downloads.drop_after(200_000), downloads.status(404))
    downloads.assert_rejected(downloads.with_checksum(url), place, "404")
    with open(place.with_name("file.bin.part"), "ab") as part:
        part.write(downloads.DATA[200_000:])
    assert downloads.fetch(downloads.with_checksum(url), place) == downloads.DATA
    assert len(server.ranges("file.bin")) == 2


def tagged(request):
    changed_part(request, {"ETag": '"another"'})


def untagged(request):
    changed_part(request, {})


@pytest.mark.parametrize(
    ("answer", "published"), [(answer_other_file, False), (tagged, False), (tagged, True), (untagged, True)]
)
def test_file_that_changes_between_ranges_is_fetched_again(server, place, answer, published):
    url = server.add("file.bin", downloads.DATA, downloads.drop_after(100_000), answer)
    assert (
        downloads.fetch(
            downloads.with_checksum(url, data=downloads.OTHER) if published else downloads.without_checksum(url), place
        )
        == downloads.OTHER
    )


def changed_part(request, headers):
    """Send the rest of another file, as a server does that ignores If-Range."""
    request.file_server.files[request.path] = downloads.OTHER
    first = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
    length = {"Content-Length": str(len(downloads.OTHER) - first)}
    request.say(
        206, headers | length | {"Content-Range": f"bytes {first}-{len(downloads.OTHER) - 1}/{len(downloads.OTHER)}"}
    )
    request.wfile.write(downloads.OTHER[first:])


def test_file_that_shrinks_between_ranges_is_fetched_again(server, place):
    def shrink(request):
        request.file_server.files[request.path] = downloads.DATA[:50_000]
        request.say(416, {"Content-Length": "0"})

    assert (
        downloads.fetch(
            downloads.without_checksum(server.add("file.bin", downloads.DATA, downloads.drop_after(100_000), shrink)),
            place,
        )
        == downloads.DATA[:50_000]
    )


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([downloads.drop_after(10)] * 9, "closes the connection.*3 times in a row"),
        ([downloads.status(503)] * 9, "answers 503, 3 times in a row"),
        ([downloads.status(404)], "answers 404"),
        ([lambda request: request.hang()] * 9, "sends hardly anything, 3 times in a row"),
        ([lambda request: request.hang(after=500)] * 9, "sends hardly anything, 3 times in a row"),
        ([lambda request: request.answer(data=downloads.DATA[:-1])], "offers 299,999 bytes, not 300,000"),
        (
            [lambda request: request.answer(data=downloads.OTHER)],
            "has a file with the sha256 [0-9a-f]{64}, not [0-9a-f]{64}",
        ),
        ([lambda request: request.answer(headers={"Content-Type": "text/html"})], "answers with a web page"),
        ([downloads.redirect("file.bin")] * 9, "redirects too often"),
        (
            [downloads.redirect("ftp://elsewhere/file.bin")] * 9,
            "redirects to an address that is neither http nor https",
        ),
        (
            [lambda request: request.say(206, {"Content-Length": "3"})] * 9,
            "sends a part of the file without its position",
        ),
        (
            [downloads.drop_after(100_000), lambda request: request.answer(ranges=False, limit=90_000)] * 9,
            "closes the connection",
        ),
        ([lambda request: endless(request)] * 9, "sends more than 300,000 bytes"),
    ],
)
def test_reports_permanent_errors_in_one_sentence(server, place, faults, message):
    downloads.assert_rejected(
        downloads.with_checksum(server.add("file.bin", downloads.DATA, *faults)), place, f"127.0.0.1 .*{message}"
    )


def endless(request):
    """Send chunks without end."""
    request.say(200, {"Transfer-Encoding": "chunked"})
    while not request.file_server.closing.is_set():
        request.wfile.write(b"8000\r\n" + bytes(0x8000) + b"\r\n")


def test_rejects_file_without_length_and_checksum(server, place):
    def unbounded(request):
        request.say(200, {"Content-Length": None, "Connection": "close"})
        request.wfile.write(downloads.DATA)
        request.drop()

    downloads.assert_rejected(
        downloads.without_checksum(server.add("file.bin", downloads.DATA, unbounded)),
        place,
        "does not send the length of the file",
    )
    assert (
        downloads.fetch(downloads.with_checksum(server.add("file.bin", downloads.DATA, unbounded)), place)
        == downloads.DATA
    )


def test_chunked_responses_mark_their_end(server, place):
    def chunked(request):
        request.say(200, {"Transfer-Encoding": "chunked"})
        request.wfile.write(
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (downloads.DATA[:9], downloads.DATA[9:]))
            + b"0\r\n\r\n"
        )

    def broken(request):
        request.say(200, {"Transfer-Encoding": "chunked"})
        request.wfile.write(b"9\r\n" + downloads.DATA[:9])
        request.drop()

    assert (
        downloads.fetch(downloads.without_checksum(server.add("file.bin", downloads.DATA, broken, chunked)), place)
        == downloads.DATA
    )


def test_md5_is_used_where_only_it_is_published(server, place):
    url = server.add("file.bin", downloads.DATA, downloads.drop_after(100_000))
    assert (
        downloads.fetch(RawFile("file.bin", (url,), md5=hashlib.md5(downloads.DATA).hexdigest()), place)
        == downloads.DATA
    )
    place.unlink()
    downloads.assert_rejected(
        RawFile("file.bin", (url,), md5="0" * 32),
        place,
        f"has a file with the md5 {hashlib.md5(downloads.DATA).hexdigest()}",
    )


def test_tries_mirrors_in_order_and_names_all_failures(server, place):
    bad, wrong, good = (
        server.add(name, data) for name, data in (("1", downloads.DATA), ("2", downloads.OTHER), ("3", downloads.DATA))
    )
    server.faults["/1"] = [downloads.status(404)]
    closed = "http://127.0.0.1:9/file.bin"
    assert downloads.fetch(downloads.with_checksum(closed, bad, wrong, good), place) == downloads.DATA
    place.unlink()
    server.faults["/1"] = [downloads.status(404)]
    downloads.assert_rejected(
        downloads.with_checksum(closed, bad, wrong),
        place,
        r"cannot be reached, 3 times in a row; .*answers 404; .*has a file with",
    )


def test_mirror_continues_the_part_of_another(server, place):
    first = server.add("1", downloads.DATA, downloads.drop_after(100_000), downloads.status(404))
    assert downloads.fetch(downloads.with_checksum(first, server.add("2", downloads.DATA)), place) == downloads.DATA
    assert server.ranges("2") == ["bytes=100000-"]
    place.unlink()
    first = server.add(
        "1", downloads.DATA, downloads.drop_after(100_000), downloads.status(404)
    )  # without a checksum it must come from one server
    assert (
        downloads.fetch(downloads.without_checksum(first, server.add("2", downloads.OTHER)), place) == downloads.OTHER
    )


def test_file_is_fetched_again_if_joined_parts_fail_verification(server, place):
    place.parent.mkdir()
    url = server.add("file.bin", downloads.DATA)
    place.with_name("file.bin.part").write_bytes(downloads.OTHER[:1000])
    place.with_name("file.bin.part.json").write_text(
        f'{{"url": "{url}", "version": "", "total": {len(downloads.DATA)}}}'
    )
    assert downloads.fetch(downloads.with_checksum(url), place) == downloads.DATA
    assert server.ranges("file.bin") == ["bytes=1000-", None]


def test_uses_proxy_of_the_environment(server, place, monkeypatch):
    monkeypatch.setenv("http_proxy", server.root.replace("//", "//name:word@"))
    monkeypatch.delenv("no_proxy", raising=False)
    seen = []

    def proxied(request):
        seen.append(request.headers["Proxy-Authorization"])
        request.answer(data=downloads.DATA)

    server.faults["http://elsewhere.test/file.bin"] = [proxied]
    assert downloads.fetch(downloads.with_checksum("http://elsewhere.test/file.bin"), place) == downloads.DATA
    assert seen[0].startswith("Basic ")
