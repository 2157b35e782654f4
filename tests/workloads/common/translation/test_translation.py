"""Both translation workloads on the command line: errors in text files, sharding and throughput in tokens."""

import subprocess
import sys

import pytest

PAIRS = [("The dog runs.", "Der Hund rennt."), ("A cat sleeps.", "Eine Katze schläft.")] * 40


def run(folder, workload, *overrides):
    files = [f"recipe.data.source=[{folder}/a.en]", f"recipe.data.target=[{folder}/a.de]"]
    files += [f"recipe.data.test_source={folder}/t.en", f"recipe.data.test_target={folder}/t.de"]
    options = [f"workload={workload}", "scale=embedded", "accelerator=cpu", "recipe.data.generate=null", *files]
    small = [
        "recipe.data.vocabulary_size=60",
        "recipe.global_batch_size=40",
        f"runs_dir={folder}/runs",
        f"data_dir={folder}",
    ]
    command = [sys.executable, "-P", "-m", "timetrial", "run", *options, *small, *overrides]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


pytestmark = pytest.mark.integration


@pytest.fixture
def text(tmp_path):
    for name, pairs in (("a", PAIRS), ("t", PAIRS[:3])):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (tmp_path / f"{name}.{language}").write_text(lines, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.de", b"eins\n", "a.en has 80 lines but"),
        ("a.en", b"caf\xe9\n" * 80, "a.en line 1 is not UTF-8 (byte 0xe9): convert the file with iconv."),
        ("t.en", b"one\n\nthree\n", "t.en line 2 is empty: correct the line, test sentences are not dropped."),
        ("t.en", b"one\n" + b"word " * 5000 + b"\nthree\n", "t.en line 2 has 5,000 words"),
        ("t.de", b"eins\nzw\x00ei\ndrei\n", "t.de line 2 contains the control character U+0000"),
        ("t.en", b"", "t.de has 3 lines but"),
    ],
)
def test_error_names_file_and_line(text, name, content, message):
    (text / name).write_bytes(content)
    done = run(text, "gnmt")
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 21, output
    assert message in output
    assert "Traceback" not in output
    assert not list((text / "runs").rglob("config.yaml"))
    assert not list((text / "prepared").iterdir())


def test_rejects_empty_test_set(text):
    for name in ("t.en", "t.de"):
        (text / name).write_text("")
    done = run(text, "transformer")
    assert done.returncode == 21
    assert "contains no sentence: name a test set with sentences." in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("workload", ["gnmt", "transformer"])
def test_ranks_and_micro_batches_do_not_change_the_loss(text, workload):
    """Two ranks, and one rank with three micro-batches, reach the loss of one undivided batch."""
    losses = []
    options = ["recipe.training.dropout=0", "recipe.max_epochs=1", "recipe.data.max_length=20"]
    for number, overrides in enumerate((["gpus=1"], ["gpus=2"], ["tuning.micro_batch_size=14"])):
        done = run(text, workload, *options, *overrides, f"run_dir={text}/run_{number}")
        assert done.returncode == 10, done.stdout + done.stderr
        row = (text / f"run_{number}" / "quality.csv").read_text().splitlines()[1].split(",")
        losses.append((float(row[5]), float(row[6])))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("workload", ["gnmt", "transformer"])
def test_text_is_opened_after_the_clock_has_started(data_files_opened_before_run_start, workload):
    small = ["recipe.data.generate.num_train=600", "recipe.data.generate.num_test=4", "recipe.training.hidden_size=16"]
    assert data_files_opened_before_run_start([f"workload={workload}", *small]) == []


@pytest.mark.parametrize("workload", ["gnmt", "transformer"])
def test_throughput_counts_tokens(text, workload):
    small = [
        "throughput.steps=2",
        "throughput.blocks=2",
        "recipe.data.vocabulary_size=200",
        "recipe.data.max_length=12",
    ]
    options = [f"workload={workload}", "scale=embedded", "accelerator=cpu", f"runs_dir={text}/runs", *small]
    command = [sys.executable, "-P", "-m", "timetrial", "throughput", *options, "recipe.data.eval_batch_size=2"]
    done = subprocess.run(command, cwd=text, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("tokens/s, without padding") == 2  # in training and in decoding
