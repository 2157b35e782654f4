"""Parsing of log lines in every dialect, and of damaged files."""

import bz2
import gzip
import io
import json
import lzma
import math
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timetrial.runner.results.parse import mllog
from timetrial.runner.results.parse.mllog import Log, read_log
from timetrial.runner.results.parse.run_reader import read_run

V07 = (
    ':::MLLOG {"namespace": "", "time_ms": 1593145810967, "event_type": "POINT_IN_TIME", "key": "seed", "value": 5, '
    '"metadata": {"file": "a.py", "lineno": 76}}'
)
V06 = ':::MLL 1558420762.300 global_batch_size: {"value": 4096, "metadata": {"lineno": 608, "file": "b.py"}}'
V05 = ':::MLPv0.5.0 ncf 1541739264.981296539 (ncf.py:450) eval_accuracy: {"epoch": 0, "value": 0.43}'


def entries_of(tmp_path, data):
    (tmp_path / "log").write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_log(tmp_path / "log").entries


def test_parses_three_dialects(tmp_path):
    v07, v06, v05 = entries_of(tmp_path, "\n".join([V07, V06, V05]))
    assert (v07.key, v07.value, v07.time_ms, v07.metadata["lineno"]) == ("seed", 5, 1593145810967, 76)
    assert (v06.key, v06.value, v06.time_ms) == ("global_batch_size", 4096, pytest.approx(1558420762300))
    assert (v05.key, v05.metadata, v05.benchmark) == ("eval_accuracy", {"epoch": 0, "value": 0.43}, "ncf")
    assert v05.time_ms == pytest.approx(1541739264981.2965, abs=1e-3)
    assert [entry.dialect for entry in (v07, v06, v05)] == ["v0.7", "v0.6", "v0.5"]


@pytest.mark.parametrize("line", [V07, V06, V05])
@pytest.mark.parametrize(
    "surround",
    [
        lambda line: f"0: {line}",
        lambda line: f"INFO:mlperf_compliance:{line}",
        lambda line: f"  5%|#    | 3/60 [00:01<00:20]\r 10%|##   |\r{line}\r\n",
        lambda line: f"\x1b[32m{line}\x1b[0m",
        lambda line: f"caf\xe9 {line}".encode("latin-1"),
        lambda line: b"\xff\xfe\x00" + line.encode() + b"\x00",
        lambda line: f"{line} and output of another process",
        lambda line: f'{{"loss": 3{line}',
        lambda line: f"\ufeff{line}",
    ],
)
def test_finds_marker_anywhere_in_line(tmp_path, line, surround):
    (surrounded,) = entries_of(tmp_path, surround(line))
    (plain,) = entries_of(tmp_path, line)
    assert surrounded == plain


def test_splits_joined_lines_and_counts_truncated_ones(tmp_path):
    assert [entry.key for entry in entries_of(tmp_path, f"{V07}{V06} {V05}")] == [
        "seed",
        "global_batch_size",
        "eval_accuracy",
    ]
    truncated = V07[:60] + V07
    assert [entry.key for entry in entries_of(tmp_path, truncated)] == ["seed"]
    assert read_log(tmp_path / "log").malformed == 1


@pytest.mark.parametrize(
    ("line", "time_ms"),
    [
        (V07.replace("1593145810967", "1593145810967.25"), 1593145810967.25),
        (V07.replace("1593145810967", '"1593145810967"'), 1593145810967),
        (V07.replace('"time_ms": 1593145810967, ', ""), None),
        (V07.replace('"time_ms": 1593145810967', '"time_s": 1593145810.5'), 1593145810500),
        (V07.replace('"namespace": ""', '"namespace": 22'), 1593145810967),
        (V07.replace('"event_type": "POINT_IN_TIME", ', ""), 1593145810967),
        (V07.replace('{"file": "a.py", "lineno": 76}', "{'lineno': 76, 'file': '/a.py', 'ok': True}"), 1593145810967),
        (V07.replace('"metadata": {"file": "a.py", "lineno": 76}', '"metadata": null'), 1593145810967),
        (V07.replace(', "metadata": {"file": "a.py", "lineno": 76}', ""), 1593145810967),
    ],
)
def test_accepts_unusual_or_missing_fields(tmp_path, line, time_ms):
    (entry,) = entries_of(tmp_path, line)
    assert (entry.key, entry.value) == ("seed", 5)
    assert math.isnan(entry.time_ms) if time_ms is None else entry.time_ms == time_ms


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (":::MLPv0.5.0 resnet 1541213547 (a/b.prototxt:28) input_batch_size:  32 ", "input_batch_size", 32),
        (":::MLPv0.5.0 resnet 1541213547 (caffe.cpp:248) run_start", "run_start", None),
        (":::MLPv0.5.0 resnet 15.5 (a.py:1) train_epoch: 61, but this one is short", "train_epoch", 61),
        (":::MLPv0.5.0 gnmt 15.5 (a.py:1) opt_name: adam", "opt_name", "adam"),
    ],
)
def test_parses_bare_values_of_v05(tmp_path, line, key, value):
    (entry,) = entries_of(tmp_path, line)
    assert (entry.key, entry.value) == (key, value)


def test_parses_alibaba_lines_of_v06(tmp_path):
    text = (
        "0: MLPerf: resnet [06/13/19 00:30:56], run_start\n"
        "MLPerf: resnet [06/13/19 00:30:57], run_set_random_seed:2019\n"
        'MLPerf: resnet [06/13/19 00:38:23], eval_accuracy: {"value": 38.89200%, "epoch": 23}\n'
        "MLPerf: resnet [13/45/19 00:38:23], nonsense\n"
    )
    start, seed, quality = entries_of(tmp_path, text)
    assert (start.key, start.benchmark, seed.value) == ("run_start", "resnet", 2019)
    assert quality.value == {"value": 38.892, "epoch": 23}
    assert quality.time_ms - start.time_ms == 447_000
    assert read_log(tmp_path / "log").malformed == 1


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_reads_compressed_and_truncated_logs(tmp_path, suffix, compress):
    data = compress((V07 + "\n").encode() * 1000)
    (tmp_path / f"a{suffix}").write_bytes(data)
    assert len(read_log(tmp_path / f"a{suffix}").entries) == 1000
    (tmp_path / f"a{suffix}").write_bytes(data[: len(data) - 20])
    assert read_log(tmp_path / f"a{suffix}").error


def test_finds_seed_in_plain_text(tmp_path):
    for text in ("+ export SEED=807071", "-e 'SEED=      807071' -e", "0: Using random master seed: 807071"):
        (tmp_path / "log").write_text(f"{text}\n{V06}\n")
        assert read_log(tmp_path / "log").printed_seed == 807071


@pytest.mark.parametrize(
    "text",
    [
        "SEED=" + " " * 2_000_000,
        "SEED=" + "'" * 2_000_000,
        "Using seed" + " " * 2_000_000,
        ":::MLLOG {'key': " + "[" * 50_000,
        ":::MLLOG {'key': " + "-" * 9_000 + "1}",
        ":::MLLOG {'a': &a ['x','x'], 'b': &b [*a,*a], 'c': &c [*b,*b], 'key': 'seed'}",
    ],
    ids=["spaces", "quotes", "blanks", "nested", "signs", "aliases"],
)
def test_hostile_line_is_skipped_at_once(tmp_path, text):
    """Each of these took more than 40 seconds, all memory, or the process."""
    (tmp_path / "result_0.txt").write_text(f"{text}\n{V07}\n")
    started = time.process_time()
    log = read_log(tmp_path / "result_0.txt")
    assert [entry.key for entry in log.entries] == ["seed"]
    assert time.process_time() - started < 10  # processor time of this process, 0.1 s where nobody attacks


def test_python_literals_are_read(tmp_path):
    (tmp_path / "log").write_text(":::MLLOG {'key': 'seed', 'value': None, 'time_ms': 5, 'metadata': {'a': true}}\n")
    (entry,) = read_log(tmp_path / "log").entries
    assert (entry.key, entry.value, entry.time_ms, entry.metadata) == ("seed", None, 5, {"a": True})


@pytest.mark.parametrize("opener", [open, gzip.open, bz2.open, lzma.open])
def test_size_of_a_log_is_limited_after_expansion(tmp_path, monkeypatch, opener):
    monkeypatch.setattr(mllog, "_MAX_LOG_BYTES", 4 << 20)
    path = tmp_path / {gzip.open: "a.gz", bz2.open: "a.bz2", lzma.open: "a.xz"}.get(opener, "a")
    with opener(path, "wb") as file:
        file.write(f"{V07}\n".encode() + b"\0" * (16 << 20))
    log = read_log(path)
    assert log.error == "it holds more than 4 MiB"
    assert [entry.key for entry in log.entries] == ["seed"]


def test_memory_stays_small_without_line_ends(tmp_path):
    with open(tmp_path / "log", "wb") as file:
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + V07.encode())
    tracemalloc.start()
    log = read_log(tmp_path / "log")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [entry.key for entry in log.entries] == ["seed"]
    assert peak < 32 << 20


def test_reads_entries_across_block_boundaries(tmp_path, monkeypatch):
    text = "\n".join(f"{'.' * (number % 37)}{V07}" for number in range(200))
    for size in (1, 7, 64, 200, 1000):
        monkeypatch.setattr(mllog, "_BLOCK_BYTES", size)
        assert len(entries_of(tmp_path, text)) == 200


def _line(key, value, time, metadata):
    return f":::MLLOG {json.dumps({'key': key, 'value': value, 'time_ms': time, 'metadata': metadata})}\n"


PIECES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([V07, V06, V05, ":::MLLOG ", ":::MLL ", ":::MLPv0.5.0 ", "\r", "\n", "\x1b[1m", "{", "}"]).map(
        str.encode
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ).map(lambda value: _line("eval_accuracy", value, 1, value).encode()),
)
KEYS = [
    "run_start",
    "run_stop",
    "eval_accuracy",
    "eval_start",
    "block_start",
    "epoch_start",
    "train_epoch",
    "quality_target",
    "target_accuracy",
    "evaluation_frequency",
]
VALUES = (
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4) | st.lists(st.floats(), max_size=3)
)
ENTRIES = st.tuples(
    st.sampled_from([*KEYS, "submission_benchmark", "seed", "global_batch_size", "train_samples"]),
    VALUES
    | st.dictionaries(st.sampled_from(["value", "epoch", "BBOX", "SEGM", "status", "success"]), VALUES, max_size=3),
    st.floats() | st.integers() | st.text(max_size=3) | st.none(),
    st.dictionaries(
        st.sampled_from(
            ["epoch_num", "samples_count", "step_num", "metric", "first_epoch_num", "epoch_count", "status"]
        ),
        VALUES,
        max_size=3,
    ),
)
BENCHMARKS = st.sampled_from(["maskrcnn", "gnmt", "bert", "stable_diffusion", "flux1", "unknown"])


def read_bytes(data, benchmark):
    log = Log(Path("log"))
    mllog.parse_stream(io.BytesIO(data), log)
    return read_run(log, benchmark=benchmark)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(PIECES, max_size=12), BENCHMARKS)
def test_arbitrary_bytes_do_not_crash(pieces, benchmark):
    read_bytes(b"".join(pieces), benchmark)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(ENTRIES, max_size=12), BENCHMARKS)
def test_arbitrary_entries_do_not_crash(entries, benchmark):
    run = read_bytes("".join(_line(*entry) for entry in entries).encode(), benchmark)
    if run is not None:
        assert run.duration is None or run.duration >= 0
        assert not (run.success and run.duration is None)
