"""Whatever a server does, a file arrives whole or there is one sentence; what has arrived is not fetched again."""

import hashlib
import random
import threading

import pytest

from timetrial.datasets.download.transport import Patience, Transport
from timetrial.datasets.registry.catalog import RawFile
from timetrial.runner.core.errors import DataError, Exit, Stopped

DATA = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(300_000)
HASTY = Patience(attempts=3, rest_seconds=0.01, stall_seconds=0.4, stall_bytes=1000, progress=1000)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "downloads" / "file.bin"


def cut(after):
    return lambda request: request.answer(limit=after)


def status(code, **headers):
    return lambda request: request.say(code, {"Content-Length": "0"} | headers)


def changed(request):
    request.server_of_files.files[request.path] = OTHER
    request.answer()


def deaf_to_ranges(request):
    request.answer(ranges=False)


def redirect(to):
    return status(302, Location=to)


def summed(*urls, data=DATA, **facts):
    return RawFile("file.bin", urls, len(data), sha256=hashlib.sha256(data).hexdigest(), **facts)


def unpublished(*urls):
    return RawFile("file.bin", urls)


def fetch(file, place, patience=HASTY):
    """What arrived, after looking that nothing else lies there and that what was returned is its SHA-256."""
    digest = Transport(patience).fetch(file, place, lambda done, total: None)
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    assert hashlib.sha256(place.read_bytes()).hexdigest() == digest
    return place.read_bytes()


def refused(file, place, words, patience=HASTY):
    with pytest.raises(DataError, match=words) as caught:
        Transport(patience).fetch(file, place, lambda done, total: None)
    assert caught.value.exit_code == Exit.DATA
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("--from.")
    assert not place.exists()


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize(
    "faults",
    [
        [],
        [cut(100_000), cut(50_000), cut(1)],
        [cut(0)],
        [status(503), status(429), cut(70_000), status(500)],
        [status(503, **{"Retry-After": "0"})],
        [status(503, **{"Retry-After": "tomorrow"})],
        [cut(100_000), deaf_to_ranges],
        [lambda request: request.hang(after=100_000)],
        [lambda request: request.trickle()],
        [redirect("elsewhere.bin")],
    ],
)
def test_what_passes_is_waited_for(server, place, faults, published):
    url = server.add("file.bin", DATA, *faults)
    server.add("elsewhere.bin", DATA)
    assert fetch(summed(url) if published else unpublished(url), place) == DATA


def test_what_has_arrived_is_not_fetched_again(server, place):
    url = server.add("file.bin", DATA, cut(100_000), cut(50_000))
    fetch(summed(url), place)
    assert server.ranges("file.bin") == [None, "bytes=100000-", "bytes=150000-"]


def test_without_edition_or_sum_nothing_is_pieced_together(server, place):
    def nameless(request):
        request.answer(limit=100_000, headers={"ETag": None})

    assert fetch(unpublished(server.add("file.bin", DATA, nameless, nameless)), place) == DATA
    assert server.ranges("file.bin") == [None, None, None]


@pytest.mark.parametrize("published", [True, False])
def test_a_later_call_continues(server, place, published):
    url = server.add("file.bin", DATA, *[cut(90_000), status(404)])
    file = summed(url) if published else unpublished(url)
    refused(file, place, "127.0.0.1 answers 404")
    assert place.with_name("file.bin.part").stat().st_size == 90_000
    assert fetch(file, place) == DATA
    assert server.ranges("file.bin")[-1] == "bytes=90000-"


@pytest.mark.parametrize("note", ["", "{}", "[]", '{"url": "x", "edition": "", "total": 12}'])
def test_what_lies_there_without_a_fitting_note_is_fetched_anew(server, place, note):
    place.parent.mkdir()
    place.with_name("file.bin.part").write_bytes(b"wrong" * 100)
    place.with_name("file.bin.part.json").write_text(note)
    assert fetch(unpublished(server.add("file.bin", DATA)), place) == DATA


def test_all_that_a_kill_kept_from_being_renamed_is_taken(server, place):
    url = server.add("file.bin", DATA, cut(200_000), status(404))
    refused(summed(url), place, "404")
    with open(place.with_name("file.bin.part"), "ab") as part:
        part.write(DATA[200_000:])
    assert fetch(summed(url), place) == DATA
    assert len(server.ranges("file.bin")) == 2


def tagged(request):
    changed_part(request, {"ETag": '"another"'})


def untagged(request):
    changed_part(request, {})


@pytest.mark.parametrize(("answer", "published"), [(changed, False), (tagged, False), (tagged, True), (untagged, True)])
def test_a_file_that_changes_between_ranges_is_fetched_anew(server, place, answer, published):
    url = server.add("file.bin", DATA, cut(100_000), answer)
    assert fetch(summed(url, data=OTHER) if published else unpublished(url), place) == OTHER


def changed_part(request, headers):
    """The rest of another file, as a server sends it that looks at no If-Range."""
    request.server_of_files.files[request.path] = OTHER
    first = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
    length = {"Content-Length": str(len(OTHER) - first)}
    request.say(206, headers | length | {"Content-Range": f"bytes {first}-{len(OTHER) - 1}/{len(OTHER)}"})
    request.wfile.write(OTHER[first:])


def test_a_file_that_shrinks_between_ranges_is_fetched_anew(server, place):
    def shrink(request):
        request.server_of_files.files[request.path] = DATA[:50_000]
        request.say(416, {"Content-Length": "0"})

    assert fetch(unpublished(server.add("file.bin", DATA, cut(100_000), shrink)), place) == DATA[:50_000]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ([cut(10)] * 9, "breaks the connection off.*3 times in a row"),
        ([status(503)] * 9, "answers 503, 3 times in a row"),
        ([status(404)], "answers 404"),
        ([lambda request: request.hang()] * 9, "sends nothing, 3 times in a row"),
        ([lambda request: request.hang(after=500)] * 9, "sends nothing, 3 times in a row"),
        ([lambda request: request.answer(data=DATA[:-1])], "offers 299,999 bytes, not 300,000"),
        ([lambda request: request.answer(data=OTHER)], "has a file of the sha256 [0-9a-f]{64}, not [0-9a-f]{64}"),
        ([lambda request: request.answer(headers={"Content-Type": "text/html"})], "answers with a web page"),
        ([redirect("file.bin")] * 9, "sends on from address to address"),
        ([redirect("ftp://elsewhere/file.bin")] * 9, "gives no answer that can be read"),
        ([lambda request: request.say(206, {"Content-Length": "3"})] * 9, "answers with a part and does not say which"),
        ([cut(100_000), lambda request: request.answer(ranges=False, limit=90_000)] * 9, "breaks the connection off"),
        ([lambda request: endless(request)] * 9, "sends more than 300,000 bytes"),
    ],
)
def test_what_does_not_pass_is_one_sentence(server, place, faults, words):
    refused(summed(server.add("file.bin", DATA, *faults)), place, f"127.0.0.1 .*{words}")


def endless(request):
    """More and more, in chunks that announce no end."""
    request.say(200, {"Transfer-Encoding": "chunked"})
    while not request.server_of_files.closing.is_set():
        request.wfile.write(b"8000\r\n" + bytes(0x8000) + b"\r\n")


def test_a_file_without_end_or_sum_cannot_be_known_to_be_whole(server, place):
    def unbounded(request):
        request.say(200, {"Content-Length": None, "Connection": "close"})
        request.wfile.write(DATA)
        request.drop()

    refused(unpublished(server.add("file.bin", DATA, unbounded)), place, "does not say how long the file is")
    assert fetch(summed(server.add("file.bin", DATA, unbounded)), place) == DATA


def test_chunks_have_an_end(server, place):
    def chunked(request):
        request.say(200, {"Transfer-Encoding": "chunked"})
        request.wfile.write(
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (DATA[:9], DATA[9:])) + b"0\r\n\r\n"
        )

    def broken(request):
        request.say(200, {"Transfer-Encoding": "chunked"})
        request.wfile.write(b"9\r\n" + DATA[:9])
        request.drop()

    assert fetch(unpublished(server.add("file.bin", DATA, broken, chunked)), place) == DATA


def test_an_md5_is_as_good_where_nothing_else_is_published(server, place):
    url = server.add("file.bin", DATA, cut(100_000))
    assert fetch(RawFile("file.bin", (url,), md5=hashlib.md5(DATA).hexdigest()), place) == DATA
    place.unlink()
    refused(RawFile("file.bin", (url,), md5="0" * 32), place, f"has a file of the md5 {hashlib.md5(DATA).hexdigest()}")


def test_mirrors_are_asked_in_turn_and_all_are_named_where_none_helps(server, place):
    bad, wrong, good = (server.add(name, data) for name, data in (("1", DATA), ("2", OTHER), ("3", DATA)))
    server.faults["/1"] = [status(404)]
    closed = "http://127.0.0.1:9/file.bin"
    assert fetch(summed(closed, bad, wrong, good), place) == DATA
    place.unlink()
    server.faults["/1"] = [status(404)]
    refused(summed(closed, bad, wrong), place, r"cannot be reached, 3 times in a row; .*answers 404; .*has a file of")


def test_a_mirror_continues_what_another_began(server, place):
    first = server.add("1", DATA, cut(100_000), status(404))
    assert fetch(summed(first, server.add("2", DATA)), place) == DATA
    assert server.ranges("2") == ["bytes=100000-"]
    place.unlink()
    first = server.add("1", DATA, cut(100_000), status(404))  # without a sum it must be of one piece
    assert fetch(unpublished(first, server.add("2", OTHER)), place) == OTHER


def test_pieces_that_do_not_fit_together_are_fetched_once_more(server, place):
    place.parent.mkdir()
    url = server.add("file.bin", DATA)
    place.with_name("file.bin.part").write_bytes(OTHER[:1000])
    place.with_name("file.bin.part.json").write_text(f'{{"url": "{url}", "edition": "", "total": {len(DATA)}}}')
    assert fetch(summed(url), place) == DATA
    assert server.ranges("file.bin") == ["bytes=1000-", None]


def test_a_proxy_of_the_environment_is_used(server, place, monkeypatch):
    monkeypatch.setenv("http_proxy", server.root.replace("//", "//name:word@"))
    monkeypatch.delenv("no_proxy", raising=False)
    seen = []

    def proxied(request):
        seen.append(request.headers["Proxy-Authorization"])
        request.answer(data=DATA)

    server.faults["http://elsewhere.test/file.bin"] = [proxied]
    assert fetch(summed("http://elsewhere.test/file.bin"), place) == DATA
    assert seen[0].startswith("Basic ")


def test_stop_wakes_whoever_waits_and_keeps_what_has_arrived(server, place, until):
    transport = Transport(Patience(stall_seconds=60))
    file, raised = summed(server.add("file.bin", DATA, lambda request: request.hang(after=100_000))), []

    def work():
        try:
            transport.fetch(file, place, lambda done, total: None)
        except Stopped as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    part = place.with_name("file.bin.part")
    until(lambda: part.exists() and part.stat().st_size == 100_000)
    transport.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert raised[0].exit_code == Exit.STOPPED
    assert fetch(file, place) == DATA
    assert server.ranges("file.bin") == [None, "bytes=100000-"]


def test_a_full_disk_is_one_sentence(server, place):
    place.parent.write_text("no folder")
    refused_words = r"^Cannot write .*file\.bin \(.*\): free space there or set --data-dir\.$"
    with pytest.raises(DataError, match=refused_words):
        Transport(HASTY).fetch(summed(server.add("file.bin", DATA)), place, lambda done, total: None)
