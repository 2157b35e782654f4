"""docs/python_api.ipynb runs from its first cell to its last."""

import json
import subprocess
import sys

import pytest


@pytest.mark.integration
def test_the_notebook_runs(root, tmp_path):
    cells = json.loads((root / "docs" / "python_api.ipynb").read_text(encoding="utf-8"))["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "seconds per epoch, baseline over other: " in done.stdout
    assert (tmp_path / "report" / "report.html").exists()
    assert done.stdout.splitlines()[-1].endswith("3 runs, 0 failed")
