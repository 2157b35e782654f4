"""A folder of configuration beside timetrial's: in every command that composes, and only while it runs."""

import json
import os

import pytest
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.config.compose import compose
from timetrial.runner.config.error_messages import choices_of_groups
from timetrial.runner.config.search_path import CONFIG_DIR, config_dir, find_config
from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.launch.rank_pool import RankPool

RECIPE = """\
# @package recipe
defaults:
  - ncf/embedded@_here_
  - _self_
max_epochs: 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a recipe and an accelerator of somebody's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONFIG_DIR, raising=False)
    for name, text in (("recipe/ncf/mine.yaml", RECIPE), ("accelerator/mine.yaml", "name: mine\nmemory_gib: 12\n")):
        path = tmp_path / "more" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "more"


def invoke(*words):
    result = CliRunner().invoke(app, [*map(str, words)], obj=RankPool())
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.output


def test_files_are_found_while_the_folder_is_named(folder):
    with config_dir("more"):
        node = compose(["recipe=ncf/mine", "accelerator=mine"]).node
        assert (node.recipe.max_epochs, node.recipe.global_batch_size, node.accelerator.memory_gib) == (3, 8192, 12)
        assert "ncf/mine" in choices_of_groups()["recipe"]
        assert find_config("recipe/ncf/mine.yaml") == folder / "recipe" / "ncf" / "mine.yaml"
    assert CONFIG_DIR not in os.environ
    assert "ncf/mine" not in choices_of_groups()["recipe"]
    with pytest.raises(Exception, match="ncf/mine"):
        compose(["recipe=ncf/mine", "accelerator=cpu"])


def test_the_variable_names_the_folder_too(folder, monkeypatch):
    monkeypatch.setenv(CONFIG_DIR, str(folder))
    with config_dir(None):
        assert compose(["recipe=ncf/mine", "accelerator=cpu"]).node.recipe.max_epochs == 3
    assert os.environ[CONFIG_DIR] == str(folder)
    monkeypatch.setenv(CONFIG_DIR, "nowhere")
    with pytest.raises(ConfigurationError, match=f"{CONFIG_DIR}=nowhere is no folder"), config_dir(None):
        pass
    with pytest.raises(ConfigurationError, match="--config-dir elsewhere is no folder"), config_dir("elsewhere"):
        pass


@pytest.mark.integration
def test_every_command_that_composes_takes_the_folder(folder, tiny_ncf):
    words = ["recipe=ncf/mine", *tiny_ncf]
    assert "max_epochs: 3" in invoke("run", "--config-dir", folder, *words, "--cfg", "job")
    assert "ncf/mine" in invoke("run", f"--config-dir={folder}", "--help")
    recipes = {entry["recipe"]: entry for entry in json.loads(invoke("list", "--json", "--config-dir", folder))}
    assert recipes["ncf/mine"]["target"] == recipes["ncf/embedded"]["target"]
    invoke("batch", "plan", "study", "--config-dir", folder, *words)
    invoke("throughput", "--config-dir", folder, *words, "data=torch", "throughput.steps=1", "launcher=inline")
    invoke("estimate", "--config-dir", folder, *words, "throughput.steps=1", "launcher=inline")
    with pytest.raises(Exception, match="ncf/mine"):
        invoke("batch", "run", "study", 0)
    result = CliRunner().invoke(app, ["batch", "run", "study", "0", "--config-dir", str(folder)], obj=RankPool())
    assert result.exit_code in (0, 10), result.output
