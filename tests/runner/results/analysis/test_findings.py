"""The five studies, borrowed: what a reader must be told of each, and the format they come in."""

import dataclasses

import pytest

from timetrial.runner.core.errors import DataError
from timetrial.runner.results.analysis import convergence, findings, plausibility
from timetrial.runner.results.analysis.groups import cells_of
from timetrial.runner.results.parse import external, sources
from timetrial.runner.results.report import build

STUDIES = external.KNOWN / "studies"


def told(name):
    found = build.build([STUDIES / f"{name}.csv"])
    return found, [(finding.kind, finding.about, finding.sentence) for finding in found.findings]


def test_t4_against_v100_raises_the_banner_and_the_super_linear_flag():
    _, said = told("t4_v100_2019")
    (banner,) = [sentence for kind, about, sentence in said if kind == "banner" and about == "gnmt"]
    assert "cannot be compared by time-to-train" in banner
    assert "T4 x 1, 2, 3, 4: 12, 7, 5, 4; V100-PCIe x 1, 2, 3: 16, 12, 9" in banner
    flags = [sentence for kind, about, sentence in said if kind == "flag" and about == "gnmt, T4"]
    assert len(flags) == 2
    assert flags[1].startswith("Super-linear: 10.4 times faster on 4 cards")


def test_cards_on_a_line_through_the_origin():
    found, said = told("rtx3060_2022")
    lines = {line.work: line for line in found.card_lines if line.peak == "FP32 peak"}
    assert len(found.card_lines) == 2 * len(lines) == 12  # against the bandwidth as well
    assert lines["vgg16, eval"].line.r2_uncentred == pytest.approx(0.976, abs=0.0006)
    assert lines["vgg16, eval"].line.r2_centred == pytest.approx(0.70, abs=0.006)
    assert lines["vgg16, train"].line.r2_uncentred == pytest.approx(0.975, abs=0.0006)
    assert lines["vgg16, train"].line.r2_centred == pytest.approx(0.66, abs=0.006)
    assert any("flatters itself" in sentence for _, _, sentence in said)
    assert sum("out of memory" in sentence for _, _, sentence in said) == 4  # MX250: two networks, two tasks


def test_nvlink_has_no_effect_and_a_dead_precision_switch_is_flagged():
    _, said = told("rtx8000_nvlink_2020")
    (effect,) = [sentence for kind, _, sentence in said if kind == "note" and "several cards" in sentence]
    assert effect.startswith("NVLink: no effect at 95%")
    assert "single cells without repeats carry no interval" in effect
    (alone,) = [sentence for kind, _, sentence in said if kind == "flag" and "what one card does alone" in sentence]
    assert "nasnet fp16 -15%" in alone
    (dead,) = [(about, sentence) for _, about, sentence in said if "precision switch" in sentence]
    assert dead[0] == "nasnet"


def test_a_precision_is_judged_at_its_best_batch():
    some = external.read_figures(STUDIES / "rtx8000_nvlink_2020.csv")[0]
    runs = [("fp32", 16, 100.0), ("fp16", 512, 300.0), ("fp16", 16, 101.0)]
    figures = [dataclasses.replace(some, precision=name, batch=batch, value=value) for name, batch, value in runs]
    assert not list(findings._of_precision(figures))
    assert list(findings._of_precision(figures[::2]))


def test_out_of_memory_is_a_value():
    found, said = told("rtx2080ti_tpuv2_2019")
    cells = [about for _, about, sentence in said if sentence.startswith("out of memory")]
    assert cells == ["cnn10, train, 1 x RTX 2080 Ti, batch 2048", "wrn-28-10, train, 1 x RTX 2080 Ti, batch 256"]
    assert all(figure.value is None for figure in found.figures if figure.outcome == "out of memory")


HEAD = "schema," + ",".join(entry.name for entry in dataclasses.fields(external.Figure))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("2,s,o,,w,,c,1,,,,minutes,3,,,", "row 1: schema 2 is not known"),
        ("1,s,,,w,,c,1,,,,minutes,3,,,", "row 1: source must be given"),
        ("1,s,o,,w,,c,1,,,,minutes,0,,,", "0 is no minutes; a run that failed has an outcome"),
        ("1,s,o,,w,,c,1,,,,parsecs,3,,,", "metric must be one of"),
        ("1,s,o,,w,,c,1,,,,minutes,fast,,,", "value must be a number"),
        ("1,s,o,,w,,c,1,,,,minutes,,,,", "value must be given exactly where"),
        ("1,s,o,,w,,c,1,,,,minutes,3,out of memory,,", "value must be given exactly where"),
        ("1,s,o,,w,,c,1,,,,minutes,,melted,,", "outcome must be one of"),
        ("1,s,o,,w,,c,-1,,,,minutes,3,,,", "count must be a number"),
        ("1,s,o,,w,,c,1,,,,minutes,3,,,,extra", "the columns must be"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, words):
    (tmp_path / "b.csv").write_text(f"{HEAD}\n{row}\n")
    with pytest.raises(DataError, match=words):
        external.read_figures(tmp_path / "b.csv")


def test_an_outlier_among_siblings_is_flagged(tmp_path):
    """4 cards at 57 times the rate of their sibling, as once was published."""
    rows = [f"1,s,o,,ncf,train,H100,{count},fp16,,,samples_per_second,{rate},,," for count, rate in RATES]
    (tmp_path / "b.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    flags = [found for found in build.build([tmp_path / "b.csv"]).findings if "outlier" in found.sentence]
    assert [found.about for found in flags] == ["ncf, train, 4 x H100, fp16"]
    assert flags[0].sentence.startswith("57")


def test_another_batch_is_no_sibling(tmp_path):
    rows = [
        f"1,s,o,,vgg16,train,H200,1,fp16,,{batch},samples_per_second,{rate},,," for batch, rate in ((16, 3), (512, 30))
    ]
    (tmp_path / "b.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    assert not [found for found in build.build([tmp_path / "b.csv"]).findings if "outlier" in found.sentence]


RATES = [(1, 58e6), (2, 117e6), (4, 13.3e9), (8, 465e6)]


def test_more_than_the_peak_is_flagged(published):
    """ResNet-50 at 8 V100s, 1.3 M images in 0.1 s: 30 times the peak of the card."""
    tree = published("box", [4] * 3, 0.1, benchmark="resnet")
    for path in tree.rglob("result_*.txt"):
        path.write_text(path.read_text().replace('"value": 0.245', '"value": 0.765'))
    flags = plausibility.findings(cells_of(sources.gather([tree])), [])
    assert any("of the peak of its card" in found.sentence for found in flags)


@pytest.mark.parametrize(("epochs", "fast"), [([30, 31, 30, 31, 30], True), ([35, 36, 35, 34, 35], False)])
def test_converging_faster_than_the_reference_is_flagged(published, epochs, fast):
    """Official RCP at batch 1632: 17 runs, 33 to 37 epochs."""
    tree = published("box", epochs, 60.0, benchmark="resnet", batch=1632)
    for path in tree.rglob("result_*.txt"):
        path.write_text(path.read_text().replace('"value": 0.245', '"value": 0.765'))
    cells = cells_of(sources.gather([tree]))
    flags = [found for found in convergence.findings(cells) if found.kind == "flag"]
    assert bool(flags) == fast
    if fast:
        assert "30.4 epochs against 35 of official reference convergence at batch 1632" in flags[0].sentence


def test_scaling_of_runs_is_flagged_where_epochs_fall(published):
    published("one", [12, 12, 12], 60.0, cards=1)
    tree = published("four", [4, 4, 4], 15.0, cards=4)
    (scaling,) = findings.scalings(cells_of(sources.gather([tree])), [])
    assert scaling.counts == [1, 4]
    assert scaling.speedup[1] == pytest.approx(12.0, rel=0.01)
    assert scaling.super_linear == [False, True]


def figures_of(rows):
    some = external.read_figures(STUDIES / "rtx8000_nvlink_2020.csv")[0]
    return [dataclasses.replace(some, **row) for row in rows]


def linked(*ratios, name="NVLink", **more):
    rows = []
    for number, ratio in enumerate(ratios):
        cell = {"workload": f"net{number}", "count": 4, **more}
        rows += [cell | {"interconnect": f"no {name}", "value": 100.0}]
        rows += [cell | {"interconnect": name, "value": 100.0 * ratio}]
    return figures_of(rows)


@pytest.mark.parametrize(
    ("ratios", "words"),
    [((1.001, 1.01, 1.3), "no effect"), ((1 / 1.001, 1 / 1.01, 1 / 1.3), "no effect"), ((1.1, 1.11, 1.12), "+11.0%")],
)
def test_an_effect_of_links_is_symmetric_and_wants_an_interval_without_1(ratios, words):
    (found,) = findings._of_interconnect(linked(*ratios))
    assert words in found.sentence


def test_two_cells_tell_no_effect_and_links_of_other_names_are_others():
    assert not list(findings._of_interconnect(linked(1.1, 1.2)))
    both = linked(1.1, 1.11, 1.12) + linked(1.0, 1.0, 1.0, name="PCIe", precision="fp32")
    assert [found.sentence.split(":")[0] for found in findings._of_interconnect(both)] == ["NVLink", "PCIe"]


def test_own_runs_are_not_paired_by_what_figures_tell():
    own = [dataclasses.replace(figure, source=external.OWN) for figure in linked(1.5, 1.5, 1.5)]
    assert not [found for found in findings.of_figures(own, [], []) if found.about == "interconnect"]


def test_scaling_over_links_begins_at_one_card():
    rows = [{"count": 1, "interconnect": "", "value": 90.0}]
    rows += [{"count": count, "interconnect": "NVLink", "value": rate} for count, rate in ((2, 180.0), (4, 396.0))]
    (found,) = findings._borrowed_scalings(figures_of(rows))
    assert (found.counts, found.super_linear) == ([1, 2, 4], [False, False, True])


def test_epochs_that_differ_raise_the_banner_and_those_that_hardly_do_do_not():
    def banners(*epochs):
        rows = [{"metric": "epochs", "count": count, "value": value} for count, value in enumerate(epochs, start=1)]
        return [found.kind for found in findings._of_epochs(figures_of(rows))]

    assert banners(10.0, 12.0) == ["banner"]
    assert banners(100.0, 104.0) == []


def test_a_switch_that_gives_a_twentieth_was_in_effect():
    def doubtful(gain):
        rows = [{"precision": "fp32", "value": 100.0}, {"precision": "fp16", "value": 100.0 * gain}]
        return list(findings._of_precision(figures_of(rows)))

    assert doubtful(1.01)
    assert not doubtful(1.05)


def test_a_fp16_peak_is_no_peak_of_fp32():
    rows = [{"metric": "peak_tflops", "precision": "fp16", "card": card, "value": 9.0} for card in "abc"]
    rows += [{"metric": "milliseconds", "precision": "fp32", "card": card, "value": 5.0} for card in "abc"]
    assert not findings.card_lines(figures_of(rows), [])


@pytest.mark.parametrize("rates", [(1.0, 6.0), (10.0, 1.0)])
def test_an_outlier_is_one_by_the_others_alone(rates):
    rows = [{"count": count, "value": rate * count} for count, rate in enumerate(rates, start=1)]
    assert len(plausibility._outliers_of_figures(figures_of(rows))) == 2
