"""Which process a run directory belongs to."""

from contextlib import ExitStack

import pytest
from rich.console import Console

from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError, RunDirLocked
from timetrial.runner.launch import open_run_dir


@pytest.mark.parametrize(
    ("resume", "error", "message"),
    [("true", RunDirLocked, "is in use by another process"), ("false", ConfigurationError, "already holds a run")],
)
def test_of_two_processes_that_begin_a_run_at_once_one_has_it(resume, error, message, tiny_ncf, tmp_path, monkeypatch):
    """The tasks of a study are begun with resume=true, and a task that another process has is passed over."""
    claim = open_run_dir.claim_run_dir

    def come_second(path, seed):
        closing.enter_context(claim(path, seed).locked())
        return claim(path, seed)

    monkeypatch.setattr(open_run_dir, "claim_run_dir", come_second)
    config = validate(compose([*tiny_ncf, f"run_dir={tmp_path}/run", f"resume={resume}"]).node)
    with ExitStack() as closing, pytest.raises(error, match=message):
        closing.enter_context(open_run_dir.open_run_dir(config, Console(quiet=True)))
    assert (tmp_path / "run" / "status.json").exists()  # the winner's
