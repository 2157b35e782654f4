"""Tables in the terminal: names from files are shown as they are, not as markup."""

import io

from rich.console import Console

from timetrial.runner.launch.result_table import format_verdict, show_rows
from timetrial.runner.record.run_record import ComplianceVerdict
from timetrial.runner.results.analysis.throughput_groups import ThroughputGroup
from timetrial.runner.results.report import build, terminal

NAME = "[/nope] [red]x[/red] [link=http://a]y"


def text_of(show):
    out = io.StringIO()
    show(Console(file=out, width=400))
    return out.getvalue()


def test_names_of_runs_are_no_markup(published):
    root = published(NAME.replace("/", ":"), [3, 4, 5], 60.0)
    report = build.build_report([root])
    name = report.groups[0].system
    assert "[red]" in name
    for show in (
        lambda console: terminal.show_run_groups(console, report.groups),
        lambda console: terminal.show_plan(console, report.groups, report.comparisons),
    ):
        assert name in text_of(show)


def test_names_of_throughput_measurements_are_no_markup():
    config = {"recipe.training.network": NAME, "gpus": 1, "precision.name": NAME, "recipe.global_batch_size": 8}
    group = ThroughputGroup(accelerator=NAME, config=config, flags={NAME}, out_of_memory=1)
    text = text_of(lambda console: terminal.show_throughput(console, [group]))
    assert text.count(NAME) == 4


def test_verdicts_and_titles_are_no_markup():
    verdict = ComplianceVerdict(compliant=True, rules=NAME, problems=())
    text = text_of(lambda console: show_rows(console, NAME, [("log", format_verdict(verdict))]))
    assert text.count(NAME) == 2
