"""Token shards of text: what they hold, and that GPT trains on them."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from rich.console import Console

from timetrial.datasets.formats import token_shards
from timetrial.datasets.text.subwords import Subwords
from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.run import launch

SCRIPT = Path(__file__).parents[3] / "scripts/data/write_token_shards.py"
LINES = [f"the {color} {animal} sleeps" for color in ("red", "blue", "old") for animal in ("cat", "dog", "fox", "owl")]


@pytest.fixture
def write(tmp_path, monkeypatch, capsys):
    def run(*options):
        (tmp_path / "text").write_text("\n".join(LINES * 40))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options, str(tmp_path), str(tmp_path / "text")])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return json.loads(capsys.readouterr().out)

    return run


def test_shards_decode_to_the_lines(write, tmp_path):
    sizes = write("--size", "300", "--validation", "0.1")
    vocabulary = Subwords.read(tmp_path / "vocabulary.txt")
    assert sizes["vocabulary"] == len(vocabulary)
    lines = []
    for name in ("train", "validation"):
        tokens = token_shards.read(tmp_path / f"{name}.bin").tolist()
        assert len(tokens) == sizes[name]
        while tokens:
            end = tokens.index(1) + 1
            lines.append(vocabulary.decode(tokens[:end]))
            tokens = tokens[end:]
    assert lines == LINES * 40


def test_gpt_trains_on_them(write, tmp_path, compose):
    sizes = write("--size", "300", "--validation", "0.1")
    files = [f"recipe.data.{name}=[{tmp_path}/{name}.bin]" for name in ("train", "validation")]
    config = compose(
        "workload=gpt", f"data_dir={tmp_path}/data", f"runs_dir={tmp_path}/runs", "launcher=inline", *files,
        f"+recipe.data.vocabulary_size={sizes['vocabulary']}", "recipe.data.generate=null", "recipe.data.context=16",
        "recipe.max_epochs=2", "recipe.target.v05.log_perplexity=5.5", "recipe.target.v07.log_perplexity=5.5",
    )  # fmt: skip
    assert launch(config, Console(quiet=True)).exit_code == Exit.TARGET_REACHED


def test_rejects_an_empty_part(write, capsys):
    with pytest.raises(SystemExit):
        write("--validation", "0")
    assert "leaves one of the two parts empty" in capsys.readouterr().err
