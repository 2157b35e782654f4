"""Sentences in two languages, and text."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from .case import MENDED, REFUSED, WORKS, Case, Write, file

_DE = "".join(f"Das ist Satz {number} .\n" for number in range(1, 31))
_EN = "".join(f"This is sentence {number} .\n" for number in range(1, 31))
_PAIRS = list(zip(_DE.splitlines(), _EN.splitlines(), strict=True))
_Content = str | bytes


def _two(train_de: _Content = _DE, train_en: _Content = _EN, test_de: _Content = _DE, suffix: str = "") -> Write:
    def write(folder: Path) -> Path:
        contents = {"train.de": train_de, "train.en": train_en, "test.de": test_de, "test.en": _EN}
        for name, content in contents.items():
            data = content.encode() if isinstance(content, str) else content
            file(f"sentences/{name}{suffix}", gzip.compress(data) if suffix == ".gz" else data)(folder)
        return folder / "sentences"

    return write


def _test(old: str, new: str) -> Write:
    return _two(test_de=_DE.replace(old, new))


def _one(suffix: str, train: str, test: str | None = None) -> Write:
    def write(folder: Path) -> Path:
        file(f"sentences/train{suffix}", train)(folder)
        return file(f"sentences/test{suffix}", train if test is None else test)(folder).parent

    return write


def _jsonl(nested: bool = False, keys: tuple[str, str] = ("de", "en")) -> str:
    rows = [dict(zip(keys, pair, strict=True)) for pair in _PAIRS]
    return "".join(f"{json.dumps({'translation': row} if nested else row)}\n" for row in rows)


def cases() -> Iterator[Case]:
    """Yield parallel text and text."""
    tsv = "".join(f"{source}\t{target}\n" for source, target in _PAIRS)
    assumed = "names no languages: recipe.data.languages=[en,de] is assumed"
    rows: list[tuple[str, str, str, Write]] = [
        ("two files a split", WORKS, "30 pairs", _two()),
        ("compressed by gzip", WORKS, "30 pairs", _two(suffix=".gz")),
        ("CRLF", WORKS, "", _two(_DE.replace("\n", "\r\n"))),
        ("a byte order mark", WORKS, "", _two("\ufeff" + _DE)),
        ("no newline at the end", WORKS, "30 pairs", _two(_DE.rstrip("\n"))),
        ("empty lines in training", WORKS, "30 pairs", _two(_DE.replace("Das ist Satz 3 .", ""))),
        ("tab-separated", MENDED, assumed, _one(".tsv", tsv)),
        ("tab-separated with a header", WORKS, "30 pairs", _one(".tsv", f"de\ten\n{tsv}")),
        ("tab-separated with a third column", MENDED, assumed, _one(".tsv", tsv.replace("\n", "\tcc-by\n"))),
        ("JSON lines", WORKS, "30 pairs", _one(".jsonl", _jsonl())),
        ("JSON lines of `translation`", WORKS, "30 pairs", _one(".jsonl", _jsonl(nested=True))),
        ("a third language in JSON lines", REFUSED, "has no sentence 'de', only fr, en",
         _one(".jsonl", _jsonl(), _jsonl(keys=("fr", "en")))),
        ("a broken JSON line", REFUSED, "line 31 is not a JSON object", _one(".jsonl", _jsonl() + "{\n")),
        ("a line without a tab", REFUSED, "line 31 has 1 columns", _one(".tsv", f"{tsv}only one\n")),
        ("Latin-1", REFUSED, "line 1 is not UTF-8", _two("Schöner Satz\n".encode("latin-1") * 30)),
        ("UTF-16", REFUSED, "is not UTF-8", _two(_DE.encode("utf-16"))),
        ("one line more in German", REFUSED, "line 31 has no translation", _two(f"{_DE}Noch einer .\n")),
        ("an empty line in the test", REFUSED, "test.de line 3 is empty", _test("Das ist Satz 3 .", "")),
        ("a control character in the test", REFUSED, "U+0000", _test("Satz 3", "Satz\0")),
        ("a line separator of Unicode in the test", REFUSED, "U+2028", _test("Satz 3", "Satz\u2028")),
        ("5,000 words on a line of the test", REFUSED, "5,004 words", _test(" 3 ", " w" * 5000 + " ")),
        ("an .sgm test set", REFUSED, "is markup", _two(test_de='<srcset setid="n" srclang="any">\n' + _DE)),
        ("TMX", REFUSED, "is markup", _two('<?xml version="1.0"?>\n<tmx version="1.4">\n' + _DE)),
        ("an empty training set", REFUSED, "", _two("", "")),
    ]  # fmt: skip
    for title, outcome, says, write in rows:
        yield Case("sentences", title, outcome, says, write)
    book = "Call me Ishmael. Some years ago, never mind how long.\n" * 60
    files: list[tuple[str, str, str, str, _Content]] = [
        ("a book", WORKS, "60 lines", "book.txt", book),
        ("a book compressed by gzip", WORKS, "60 lines", "book.txt.gz", gzip.compress(book.encode())),
        ("one line", WORKS, "1 lines", "book.txt", book.replace("\n", " ")),
        ("Chinese", WORKS, "", "book.txt", "天地玄黃宇宙洪荒\n" * 200),
        ("Markdown", WORKS, "", "book.md", f"# Title\n\n{book}"),
        ("an empty file", REFUSED, "is empty", "book.txt", ""),
        ("Latin-1", REFUSED, "is not UTF-8", "book.txt", "Schön\n".encode("latin-1") * 99),
        ("a PDF", REFUSED, "is not UTF-8", "book.pdf", b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + book.encode()),
    ]
    for title, outcome, says, name, content in files:
        yield Case("text", title, outcome, says, file(name, content))
