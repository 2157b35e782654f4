"""Two checkouts in turn."""

import pytest

from timetrial.runner.record.record_file import read_record

pytestmark = pytest.mark.integration


def test_a_checkout_beside_itself(start, root, tmp_path):
    words = ["target.hit_rate=0.001"]
    command = [str(root), str(root), "--seeds=2", "--out=out", *words, "accelerator=cpu"]
    done = start("compare_checkouts.py", *command)
    assert done.returncode == 0, done.stderr
    assert "against baseline" in done.stdout
    attempts = [
        read_record(tmp_path / "out" / side / f"seed_{seed}").attempts[0]
        for seed in (1, 2)
        for side in ("baseline", "other")
    ]
    assert [attempt.started_at for attempt in attempts] == sorted(attempt.started_at for attempt in attempts)
    again = start("compare_checkouts.py", *command)
    assert again.returncode == 0
    assert again.stdout.strip() == done.stdout[done.stdout.index("other (") :].strip()
