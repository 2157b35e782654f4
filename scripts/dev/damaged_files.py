"""Damage the files of a folder at random: bytes, values of JSON, names and kinds of files."""

import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Case = dict[str, bytes]  # the files of a folder by name

TOKENS = [
    b"NaN", b"-Infinity", b"1e308", b"-1e308", b"1e-308", b"9" * 5000, b"-1", b"0", b"null", b"true", b"[]", b"{}",
    b"[" * 100_000, b'{"a":' * 2000, b"\x00", b"\xff\xfe", b"\x1b[31m", "\u202e".encode(), b"\\u001b", b"'" * 99,
    b"${oc.env:HOME}", b"&a [*a, *a]", b"!!python/object/apply:os.system ['true']", b"=1+1", b"[/nope]", b"../../x",
    b":::MLLOG ", b":::MLL 1.0 run_start: ", b":::MLPv0.5.0 ncf 1.0 (a.py:1) run_stop: ", b" " * 100_000, b"SEED=",
    b'"value": "' + b"[" * 20_000, b"\r", b"\n", b",,,,", b'"' * 31,
]  # fmt: skip
NAMES = [b"result_1\xc2\xb22.txt", b"result_" + b"7" * 200 + b".txt", b"\xff\xfe.log", b"a\nb.txt", b"\x1b[31m.txt"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("${system}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def damage_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return `content` with one to five places flipped, cut, repeated or overwritten by a token."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 5)):
        start = chance.randrange(len(data) + 1)
        end = min(start + int(10 ** chance.uniform(0, 3)), len(data))
        kind = chance.randrange(6)
        if kind == 0:
            for place in range(start, min(start + 8, len(data))):
                data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[start:end]
        elif kind == 2:
            data[start:start] = data[start:end] * chance.randint(1, 20)
        elif kind == 3:
            data[start:end] = chance.choice(TOKENS)
        elif kind == 4:
            data[start:start] = chance.choice(TOKENS)
        elif numbers := [place for place in range(len(data)) if chr(data[place]).isdigit()]:
            place = chance.choice(numbers)
            data[place : place + 1] = chance.choice(TOKENS)
    return bytes(data)


def damage_json(text: bytes, value: Any, chance: random.Random) -> bytes:
    """Return JSON text with one value, at any depth, replaced; other text with damaged bytes."""
    try:
        document = json.loads(text)
    except ValueError:
        return damage_bytes(text, chance)
    places = list(_places(document))
    if places:
        owner, key = chance.choice(places)
        owner[key] = value
    return json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def write_damaged(case: Case, folder: Path, value: Any, chance: random.Random, links: Sequence[str] = ()) -> None:
    """Write a case to `folder`, one of its files damaged, or a link to a device or to one of `links`."""
    target = chance.choice([name for name in case if not name.endswith((".txt.gz", ".pt", ".lock"))])
    for name, content in case.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name != target:
            path.write_bytes(content)
            continue
        kind = chance.randrange(20)
        if kind == 0:
            os.mkfifo(path)
        elif kind == 1:
            path.symlink_to(chance.choice(["/dev/zero", "/dev/full", ".", path.name, "/proc/self/mem", *links]))
        elif kind == 2:
            path.mkdir()
        elif kind == 3:
            Path(os.fsdecode(os.fsencode(path.parent) + b"/" + chance.choice(NAMES))).write_bytes(content)
        elif name.endswith(".json") and kind < 12:
            path.write_bytes(damage_json(content, value, chance))
        else:
            path.write_bytes(damage_bytes(content, chance))
