"""A run of engine=tensorflow."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.mark.e2e
def test_reaches_the_embedded_target(tmp_path):
    overrides = [
        "workload=resnet50",
        "engine=tensorflow",
        "accelerator=cpu",
        f"data_dir={tmp_path}",
        f"runs_dir={tmp_path}/runs",
    ]
    done = subprocess.run([sys.executable, "-P", "-m", "timetrial", "run", *overrides], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "complies" in done.stdout
    (log,) = (tmp_path / "runs").rglob("result_1.txt")
    assert '"timetrial_engine", "value": "tensorflow"' in log.read_text()
