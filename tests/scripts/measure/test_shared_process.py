"""The comparison of runs that share a process with others, on the CPU."""

import pytest


@pytest.mark.integration
def test_later_runs_of_a_process_are_compared_with_first_ones(measure, tiny_ncf, tmp_path, welch_ratio):
    line = measure("shared_process.py", "--runs", "3", "--folder", str(tmp_path / "both"), *tiny_ncf)
    assert (line["shared"]["earlier_runs"], line["separate"]["earlier_runs"]) == ([0, 1, 2], [0, 0, 0])
    later, first = (line[side]["seconds"][1:] for side in ("shared", "separate"))
    assert [line[key] for key in ("later_over_first", "low", "high")] == pytest.approx(welch_ratio(later, first))
    assert min(line["shared"]["start"] + line["separate"]["start"]) > 0
