"""A short form of the calibration of plausibility flags and predictions."""

import pytest


@pytest.mark.integration
def test_flags_and_predictions_hold(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "scripts"))
    from calibration import plausibility_rows as tables

    parts = (
        tables.convergence_rows,
        tables.scaling_rows,
        tables.interconnect_rows,
        tables.regression_rows,
        tables.estimate_rows,
    )
    rows = [row for rows_of in parts for row in rows_of(replicates=400, seed=3)]
    assert [problem for row in rows for problem in row.problems()] == []
    found = {row.name: row.cells[10][0] for row in rows if "20% faster" in row.name or "efficiency 1.3" in row.name}
    assert len(found) == 8
    # Entries at a batch of 8,192 differ by 37%, which hides 20%.
    assert min(share for name, share in found.items() if "8,192" not in name) > 0.5
