"""What GPT says to wrong files and settings: one sentence, with the exit code of its kind."""

import re
import struct

import numpy as np
import pytest

from timetrial.datasets.formats import token_shards
from timetrial.runner.core.errors import Exit, RunError
from timetrial.workloads.gpt import token_windows

TEXT = "to be or not to be\n" * 60


@pytest.fixture
def build(build_engine, tmp_path):
    """Build an engine on a.txt and b.txt, or on a.bin and b.bin with the tokens below 50, and open its data."""
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text(TEXT[:100])
    token_shards.write(tmp_path / "a.bin", np.arange(1000) % 50)
    token_shards.write(tmp_path / "b.bin", np.arange(100) % 50)

    def build_on_files(*overrides, kind="txt"):
        names = {"train": "a", "validation": "b"}
        files = [f"recipe.data.{key}=[{tmp_path}/{name}.{kind}]" for key, name in names.items()]
        shards = ["++recipe.data.vocabulary_size=50"] if kind == "bin" else []
        small = ["recipe.data.context=16", "recipe.data.generate=null", "recipe.training.hidden_size=16"]
        options = ["workload=gpt", "scale=embedded", "recipe.global_batch_size=4", f"data_dir={tmp_path}"]
        return build_engine(*options, *small, *files, *shards, *overrides)

    return build_on_files


def assert_fails(build, exit_code, message, **options):
    with pytest.raises(RunError, match=message) as caught:
        build(**options)
    assert caught.value.exit_code == exit_code
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("kind", ["txt", "bin"])
def test_right_files_are_accepted(build, kind):
    assert build(kind=kind).data.eval_size == 6


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt is empty"),
        ("b.txt", b"", r"b\.txt is empty"),
        ("a.txt", b"to be\0or not" * 99, r"a\.txt is binary"),
        ("b.txt", b"to be\0or not" * 99, r"b\.txt is binary"),
        ("a.txt", b"caf\xe9" * 999, r"a\.txt is not UTF-8 text \(byte 3\)"),
        ("b.txt", b"caf\xe9" * 999, r"b\.txt is not UTF-8 text \(byte 3\)"),
        ("b.txt", b"to be\nor not to be\nthat is", r"b\.txt line 3 has the character 'h'"),
        ("a.txt", None, r"a\.txt is missing: name your text in"),
        ("b.txt", None, r"b\.txt is missing: name your text in"),
    ],
)
def test_wrong_text_is_named(build, tmp_path, name, content, message):
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    assert_fails(build, Exit.DATA, message)
    assert not list(tmp_path.rglob("*.manifest.json"))


def test_unknown_character_is_named_with_its_own_file_and_line(build, tmp_path):
    """Among several validation files."""
    (tmp_path / "b.txt").write_text("to be\n\nor!\n")
    both = f"recipe.data.validation=[{tmp_path}/b.txt,{tmp_path}/a.txt]"
    assert_fails(lambda: build(both), Exit.DATA, r"b\.txt line 3 has the character '!'")
    both = f"recipe.data.validation=[{tmp_path}/a.txt,{tmp_path}/b.txt]"
    assert_fails(lambda: build(both), Exit.DATA, r"b\.txt line 3 has the character '!'")


@pytest.mark.parametrize("name", ["a.bin", "b.bin"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], r"has \d+ bytes, which are not those of its 10+ tokens"),
        (lambda content: struct.pack("<i", 20240801) + content[4:], "is no token shard of version 1"),
        (lambda content: content[:100], "is no token shard of version 1"),
        (None, "is missing: name your shards in"),
    ],
)
def test_wrong_shard_is_named(build, tmp_path, name, damage, message):
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink() if damage is None else path.write_bytes(damage(content))
    assert_fails(
        build, Exit.DATA, f"{re.escape(name)} {message}".replace("bin bytes", r"bin has \d+ bytes"), kind="bin"
    )


@pytest.mark.parametrize("name", ["a.bin", "b.bin"])
def test_shard_of_a_larger_vocabulary_is_rejected(build, tmp_path, monkeypatch, name):
    token_shards.write(tmp_path / name, np.arange(1000) % 51)
    message = "has the token 50, beyond a vocabulary of 50: use shards of this vocabulary, or set recipe"
    assert_fails(build, Exit.DATA, message, kind="bin")
    monkeypatch.setattr(token_windows, "_MAX_DEVICE_TOKENS", 0)

    def read_all():
        data = build(kind="bin").data
        return [*data.train_batches(1), *data.eval_batches()]

    assert_fails(read_all, Exit.DATA, message)


@pytest.mark.parametrize("kind", ["txt", "bin"])
def test_short_text_is_rejected(build, tmp_path, kind):
    """Validation needs a window and the token after it, training a batch of windows and a window to be shifted."""
    if kind == "txt":
        (tmp_path / "b.txt").write_text(TEXT[:16])
    else:
        token_shards.write(tmp_path / "b.bin", range(16))
    shorter = "The validation text is shorter than a window of 16 tokens and the token after it"
    assert_fails(build, Exit.CONFIGURATION, shorter, kind=kind)
    (tmp_path / "b.txt").write_text(TEXT[:17])
    token_shards.write(tmp_path / "b.bin", range(17))
    assert build(kind=kind).data.eval_size == 1
    (tmp_path / "a.txt").write_text(TEXT[: 5 * 16 - 1])
    token_shards.write(tmp_path / "a.bin", range(5 * 10 - 1))
    windows = {"txt": 3, "bin": 2}[kind]
    fewer = f"An epoch has {windows} windows of 16 tokens, fewer than a batch of 4: .* or lower recipe.data.context"
    assert_fails(build, Exit.CONFIGURATION, fewer, kind=kind)


@pytest.mark.parametrize("text", ["t", "to be or"])
def test_text_too_short_to_be_split_is_rejected(build, tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    shorter = "The validation text is shorter than a window"
    assert_fails(lambda: build("recipe.data.validation=[]"), Exit.CONFIGURATION, shorter)


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("txt", ["validation=[b.bin]"], r"train and validation must be text or token shards \(\.bin\), not both"),
        ("bin", ["train=[a.bin,a.txt]"], r"train and validation must be text or token shards \(\.bin\), not both"),
        ("txt", ["vocabulary_size=50"], "vocabulary_size is for token shards"),
        ("bin", ["vocabulary_size=null"], "Token shards need validation shards and vocabulary_size"),
        ("bin", ["vocabulary_size=65537"], "vocabulary_size must be from 1 to 65536"),
        ("bin", ["vocabulary_size=-1"], "vocabulary_size must be from 1 to 65536"),
        ("bin", ["validation=[]"], "Token shards need validation shards and vocabulary_size"),
        ("txt", ["train=[]"], "train must name a file"),
        ("txt", ["context=0"], "must be 1 or more"),
        ("txt", ["eval_batch_size=0"], "must be 1 or more"),
        ("txt", ["epoch_windows=0"], "must be 1 or more"),
        ("txt", ["epoch_windows=-1"], "must be 1 or more"),
    ],
)
def test_wrong_settings_are_rejected(build, kind, overrides, message):
    overrides = [f"++recipe.data.{override}" for override in overrides]
    assert_fails(lambda: build(*overrides, kind=kind), Exit.CONFIGURATION, message)


def test_epoch_shorter_than_a_batch_is_rejected(build):
    """The message names the key that is too small: the text has windows enough."""
    message = "An epoch has 3 windows of 16 tokens, fewer than a batch of 4: .* or raise recipe.data.epoch_windows"
    assert_fails(lambda: build("++recipe.data.epoch_windows=3"), Exit.CONFIGURATION, message)
