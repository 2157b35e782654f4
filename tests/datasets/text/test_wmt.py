"""Preparation of text is reproducible and atomic, and its errors name the line."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from timetrial.datasets.synthetic import language
from timetrial.datasets.text import wmt
from timetrial.datasets.text.moses_bpe import MosesBPE
from timetrial.datasets.text.wmt import Corpus
from timetrial.runner.core.errors import DataError
from timetrial.workloads.transformer.vocabulary import SharedVocabulary


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "text"
    language.write_parallel_text(folder, language.TranslationSpec(3000, 50))
    return Corpus(
        ((folder / "train.source", folder / "train.target"),),
        (folder / "test.source", folder / "test.target"),
        ("en", "de"),
    )


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_prepared_text_decodes_to_the_files(corpus, tmp_path):
    prepared = wmt.prepare(corpus, MosesBPE, 300, tmp_path / "prepared")
    statistics = prepared.statistics
    assert (statistics.pairs, statistics.dropped) == (3000, {})
    offsets = prepared.tokens("test", "source").offsets
    assert statistics.test_lengths == tuple(sorted((offsets[1:] - offsets[:-1]).tolist(), reverse=True))
    vocabulary = MosesBPE.read(prepared.folder / "vocabulary")
    for split, count in (("train", 3000), ("test", 50)):
        for side, path in zip(("source", "target"), corpus.train[0] if split == "train" else corpus.test, strict=True):
            tokens, lines = prepared.tokens(split, side), path.read_text().splitlines()
            assert len(tokens) == count == len(lines)
            for number in (0, 7, count - 1):
                ids = tokens.ids[tokens.offsets[number] : tokens.offsets[number + 1]]
                assert vocabulary.decode(ids.tolist()) == lines[number]
    assert prepared.references() == corpus.test[1].read_text().splitlines()


def test_workers_give_the_same_bytes(corpus, tmp_path, monkeypatch):
    alone = wmt.prepare(corpus, MosesBPE, 100, tmp_path / "alone")
    monkeypatch.setattr(wmt, "_MIN_BYTES_FOR_WORKERS", 0)
    monkeypatch.setattr(wmt, "_CHUNK_PAIRS", 111)
    seen = []
    together = wmt.prepare(
        corpus, MosesBPE, 100, tmp_path / "together", workers=2, progress=lambda description, done: seen.append(done)
    )
    assert contents(alone.folder) == contents(together.folder)
    assert alone.folder.name == together.folder.name
    assert max(seen) == 3000


def test_prepared_text_is_reused_until_something_changes(corpus, tmp_path, monkeypatch):
    first = wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared")
    with monkeypatch.context() as patch:
        patch.setattr(MosesBPE, "learn", None)
        assert wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared").folder == first.folder
    assert wmt.prepare(corpus, MosesBPE, 101, tmp_path / "prepared").folder != first.folder
    os.utime(corpus.test[0], ns=(1, 1))
    assert wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared").folder != first.folder


def test_unusable_pairs_are_dropped_and_counted(corpus, tmp_path):
    (source, target) = corpus.train[0]
    with open(source, "a") as source_file, open(target, "a") as target_file:
        for line, translation in (("", "x"), ("a\x01b", "x"), ("a\x02b", "x"), ("a " * 90, "x"), ("a", "日本")):
            source_file.write(f"{line}\n")
            target_file.write(f"{translation}\n")
    prepared = wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared")
    assert prepared.statistics.pairs == 3002  # control characters are deleted
    assert prepared.statistics.dropped == {
        "does not have 1 to 80 tokens": 2,
        "contains characters outside Latin-1": 1,
    }


def test_transformer_drops_no_pair(corpus, tmp_path):
    """The reference keeps empty lines and control characters, and its lines end at newlines only."""
    (source, target) = corpus.train[0]
    lines = ("", "a\x01b", "a\x85b", "a\u2028b", "a\tb")
    with open(source, "a") as source_file, open(target, "a") as target_file:
        source_file.write("".join(f"{line}\n" for line in lines))
        target_file.write("x\n" * len(lines))
    prepared = wmt.prepare(corpus, SharedVocabulary, 300, tmp_path / "prepared")
    assert (prepared.statistics.pairs, prepared.statistics.dropped) == (3000 + len(lines), {})
    tokens, vocabulary = prepared.tokens("train", "source"), SharedVocabulary.read(prepared.folder / "vocabulary")
    sentences = [tokens.ids[start:stop].tolist() for start, stop in itertools.pairwise(tokens.offsets[-6:])]
    assert [vocabulary.decode(ids) for ids in sentences] == list(lines)


def test_manifest_holds_the_distribution_of_lengths(corpus, tmp_path):
    prepared = wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared")
    source, target = (np.diff(prepared.tokens("train", side).offsets) for side in ("source", "target"))
    counts = {count.tokens: count for count in prepared.statistics.lengths}
    assert list(counts) == sorted(set(np.maximum(source, target).tolist()))
    for tokens, count in counts.items():
        of_length = [pair for pair in zip(source.tolist(), target.tolist(), strict=True) if max(pair) == tokens]
        assert count == (tokens, len(of_length), *map(sum, zip(*of_length, strict=True)))


def test_content_is_all_but_the_manifest(corpus, tmp_path):
    """Its digest says whether two runs had the same data, also runs of versions with other manifests."""
    prepared = wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared")
    files = {path for path in prepared.folder.rglob("*") if path.is_file()}
    assert {path.name for path in files - set(prepared.content())} == {"manifest.json"}
    assert len(prepared.content()) > 8


def test_rejects_text_without_usable_pairs(corpus, tmp_path):
    for path in corpus.train[0]:
        path.write_text("\n\n")
    with pytest.raises(DataError, match=r"leave no pair to train on .2 does not have 1 to 80 tokens.: use other"):
        wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared")
    assert not any((tmp_path / "prepared").iterdir())


def test_rejects_overlong_test_sentence(corpus, tmp_path):
    lines = corpus.test[0].read_text().splitlines()
    corpus.test[0].write_text("\n".join([*lines[:6], "xq" * 4000, *lines[7:], ""]))
    with pytest.raises(DataError, match=r"test.source line 7 has [\d,]+ tokens: a test sentence has at most 2,000"):
        wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared")
    assert not list((tmp_path / "prepared").iterdir())


def test_uses_given_vocabulary(corpus, tmp_path):
    first = wmt.prepare(corpus, MosesBPE, 200, tmp_path / "prepared")
    vocabulary_path = first.folder / "vocabulary"
    second = wmt.prepare(corpus, MosesBPE, 5, tmp_path / "other", vocabulary_path=vocabulary_path)
    assert contents(second.folder / "vocabulary") == contents(vocabulary_path)
    assert np.array_equal(second.tokens("train", "source").ids, first.tokens("train", "source").ids)
    with pytest.raises(DataError, match="nowhere is missing: name another"):
        wmt.prepare(corpus, MosesBPE, 5, tmp_path / "other", vocabulary_path=tmp_path / "nowhere")


def test_names_damaged_files(corpus, tmp_path):
    prepared = wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared")
    (prepared.folder / "train.source.offsets").unlink()
    with pytest.raises(DataError, match=r"is incomplete .*delete it"):
        prepared.tokens("train", "source")
    (prepared.folder / "manifest.json").write_text(json.dumps({}))
    with pytest.raises(DataError, match=r"is incomplete .*delete it"):
        wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared")


def test_killed_preparation_is_repeated(corpus, tmp_path):
    program = f"""
import time
from pathlib import Path
from timetrial.datasets.text import wmt
from timetrial.datasets.text.moses_bpe import MosesBPE
def slowly(description, done):
    print(description, flush=True)
    time.sleep(0.5)
paths = {[str(path) for path in (*corpus.train[0], *corpus.test)]!r}
paths = [Path(path) for path in paths]
corpus = wmt.Corpus(((paths[0], paths[1]),), (paths[2], paths[3]), ("en", "de"))
wmt.prepare(corpus, MosesBPE, 100, Path({str(tmp_path / "prepared")!r}), progress=slowly)
"""
    with subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("writing ids"):
                break
        process.send_signal(signal.SIGKILL)
    time.sleep(0.1)
    left = [path.name for path in (tmp_path / "prepared").iterdir()]
    assert all(name.startswith(".") for name in left)
    assert wmt.prepare(corpus, MosesBPE, 100, tmp_path / "prepared").statistics.pairs == 3000
