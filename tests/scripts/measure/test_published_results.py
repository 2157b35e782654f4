"""The file of published results: which of two entries is kept, and how they are compared."""

from timetrial.runner.record.published_results import COLUMNS
from timetrial.scripts.measure.published_results import differences, merge, rows_of_table


def row(**values):
    base = dict.fromkeys(COLUMNS, "") | {"round": "v0.7", "submitter": "a", "system": "s", "benchmark": "gnmt"}
    return base | {"runs": "10", "converged": "10", "minutes": "8", "source": "logs"} | values


def test_own_entry_is_kept_unless_it_lacks_runs():
    table = [
        row(source="table", accelerators="8", minutes="8.1"),
        row(source="table", system="t", runs="50", accelerators="16"),
        row(source="table", system="u"),
    ]
    merged = merge([row(), row(system="t", runs="30")], table)
    assert [(entry["system"], entry["source"]) for entry in merged] == [("s", "logs"), ("t", "table"), ("u", "table")]
    assert (merged[0]["accelerators"], merged[0]["minutes"]) == ("8", "8")


def test_differences_are_counted(capsys):
    counts = differences([row(), row(system="t")], [row(minutes="8.1", accelerators="8")])
    assert counts["v0.7 minutes: differs"] == 1
    assert counts["v0.7 accelerators: empty in the logs"] == 1
    assert counts["v0.7 runs: equal"] == 1
    assert counts["v0.7 entries of the logs alone"] == 1
    assert "minutes: 8 8.1" in capsys.readouterr().out


def test_table_is_read_with_the_factor_of_its_scores(tmp_path):
    (tmp_path / "entries.csv").write_text(
        "round,division,submitter,system,accelerator,accelerators,benchmark,runs,converged,minutes,scaling,"
        "epochs_median,samples_median,cv_time,cv_pace,global_batch\n"
        "v1.0,Closed,x,y,A100,8,ssd,5,5,10,1.05,50,,0.01,0.001,128|256\n"
    )
    (entry,) = rows_of_table(tmp_path / "entries.csv")
    assert (entry["minutes"], entry["division"], entry["global_batch"]) == ("10.5", "closed", "")
