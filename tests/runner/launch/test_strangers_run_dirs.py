"""Resuming a stranger's run directory: its configuration is data, and nothing in it is resolved or imported."""

import os
import re

import pytest

from timetrial.runner.core.errors import Exit, RunError

SECRET = "hunter2-topsecret"
DEEP = "[" * 50_000


@pytest.fixture
def stranger(launch, tmp_path, monkeypatch):
    """Return a function that stops a run, changes its config.yaml by (pattern, text), and resumes it."""
    monkeypatch.setenv("SECRET_TOKEN", SECRET)
    monkeypatch.chdir(tmp_path)
    _, run_dir = launch("seed=4", f"run_dir={tmp_path}/run", "checkpoint.at_end=true")
    run_dir.update(lambda record: record.ended(Exit.STOPPED, ""))

    def resume(pattern, text, *overrides):
        before = run_dir.config.read_text()
        changed = re.sub(pattern, lambda match: text, before, count=1, flags=re.MULTILINE)
        assert changed != before
        run_dir.config.write_text(changed)
        with pytest.raises(RunError) as error:
            launch(f"run_dir={tmp_path}/run", "resume=true", *(overrides or ("seed=4",)))
        for path in (path for path in tmp_path.rglob("*") if path.is_file() and path != run_dir.config):
            assert SECRET.encode() not in path.read_bytes(), path
        assert SECRET not in run_dir.config.read_text()
        return str(error.value)

    return resume


@pytest.mark.integration
@pytest.mark.parametrize(
    ("pattern", "text", "problem"),
    [
        (r"^system: .*", "system: ${oc.env:SECRET_TOKEN}", "interpolation"),
        (r"^system: .*", 'system: "\\x24{oc.env:SECRET_TOKEN}"', "interpolation"),
        (r"^  platform: .*", "  platform: ${oc.env:SECRET_TOKEN}", "interpolation"),
        (r"^system: .*", "${oc.env:SECRET_TOKEN}: x\nsystem: x", "interpolation"),
        (r"^system: .*", "system: {a: 1}", "system"),
        (r"^system: .*", f"system: {DEEP}", "cannot be read"),
        (r"^system: .*", "a: &a [x, x]\nb: &b [*a, *a]\nsystem: *b", "references"),
        (r"^system: .*", "system: !!python/object/apply:os.mkdir ['made']", "could not determine a constructor"),
        (r"^system: .*", f"system: {'9' * 5000}", "cannot be read"),
        (r"^system: .*", "system: .nan", "beyond any result"),
        (r"^  workload: .*", "  workload: this.Thing", "another configuration (workload.workload)"),
        (r"(?s).*", "[]", "holds no keys"),
        (r"(?s).*", "a\0b", "cannot be read"),
    ],
)
def test_hostile_configuration_is_refused(stranger, tmp_path, pattern, text, problem):
    (tmp_path / "this.py").write_text("import os; os.mkdir('made')")
    assert problem in stranger(pattern, text)
    assert not (tmp_path / "made").exists()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: ${oc.env:SECRET_TOKEN}", "interpolation"),
        ("seed: x", "states no seed"),
        ("seed: null", "states no seed"),
        ("seed: -1", "states no seed"),
        ("seed: 9223372036854775808", "states no seed"),
    ],
)
def test_seed_of_a_stranger_is_data(stranger, text, problem):
    assert problem in stranger(r"^seed: .*", text, "seed=null")


FILES = ["config.yaml", "status.json", "error_0.json", "result_4.txt", "telemetry.csv", "quality.csv", ".lock"]


@pytest.mark.integration
@pytest.mark.parametrize("make", ["pipe", "link"])
@pytest.mark.parametrize("name", [*FILES, "checkpoint/checkpoint.pt", "wandb"])
def test_special_file_in_a_run_directory_is_refused(launch, tmp_path, name, make):
    _, run_dir = launch("seed=4", f"run_dir={tmp_path}/run", "checkpoint.at_end=true")
    run_dir.update(lambda record: record.ended(Exit.STOPPED, ""))
    (tmp_path / "elsewhere").write_text("kept")
    (run_dir.path / name).unlink(missing_ok=True)
    if make == "pipe":
        os.mkfifo(run_dir.path / name)
    else:
        (run_dir.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="cannot be read"):
        launch(f"run_dir={tmp_path}/run", "resume=true", "seed=4")
    assert (tmp_path / "elsewhere").read_text() == "kept"
