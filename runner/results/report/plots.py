"""The pictures of a report, each with the numbers behind it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..analysis import stats
from ..analysis.comparison import Comparison
from ..analysis.findings import CardLine, Scaling
from ..analysis.groups import Cell
from ..analysis.stats import Interval
from ..parse import rules
from ..parse.runs import Evaluation, Run
from .drawing import (
    INK,
    MUTED,
    PAPER,
    SERIES,
    STYLE,
    Picture,
    arms,
    in_columns,
    legend,
    panels,
    picture,
    plain,
    plain_ticks,
    series,
)

_SORTED_FROM = 12  # bars from which their order is that of the values
_MOST_RUNS = 60  # curves that a picture of single runs can hold


def of_work(
    name: str, title: str, cells: Sequence[Cell], comparisons: Sequence[Comparison], scalings: Sequence[Scaling]
) -> list[Picture]:
    """All pictures of one work for which there is data; `name` begins the names of their files."""
    with rc_context(STYLE):
        found = [
            _minutes(f"{name}-minutes", title, cells),
            _throughput(f"{name}-throughput", title, cells),
            *_qualities(f"{name}-quality", title, cells),
            _epochs(f"{name}-epochs", title, cells),
            _scaling(f"{name}-scaling", title, scalings),
            _ratios(f"{name}-ratios", title, comparisons),
        ]
    return [one for one in found if one]


def of_figures(scalings: Mapping[str, Sequence[Scaling]], lines: Mapping[str, CardLine]) -> list[Picture]:
    """Pictures of borrowed figures, by the names that their files shall have."""
    with rc_context(STYLE):
        scaled = [_scaling(name, same[0].work, same) for name, same in scalings.items()]
        return [one for one in scaled if one] + [_card_line(name, line) for name, line in lines.items()]


def label(cell: Cell) -> str:
    """A cell within its section: system and cards, cut where it is too long for a picture."""
    return _cut(f"{cell.submitter} {cell.system}, {cell.setting or cell.accelerators}", 72)


def pair_label(pair: Comparison, longest: int = 36) -> str:
    """Both sides of a comparison by what tells them apart in their section."""
    own = pair.one.system == pair.other.system and pair.one.submitter == pair.other.submitter
    names = [(cell.setting if own else cell.system) or label(cell) for cell in (pair.one, pair.other)]
    if pair.one.submitter != pair.other.submitter:
        names = [f"{cell.submitter} {cell.system}" for cell in (pair.one, pair.other)]
    return " against ".join(_cut(name, longest) for name in names)


def no_result(cell: Cell) -> str:
    """What stands where a number would mislead; empty for a cell without failures."""
    return f"no result: {cell.failed} of {len(cell.runs)} failed" if cell.failed else ""


def _cut(text: str, longest: int) -> str:
    words = " ".join(text.split()).strip(" ,")
    return words if len(words) <= longest else words[: longest - 1] + "…"


def _minutes(name: str, title: str, cells: Sequence[Cell]) -> Picture | None:
    caption = (
        "Mean time-to-train of the runs that reached the target; whiskers are its 95% interval. Shorter is better."
    )
    return _bars(name, f"Minutes to train, {title}", caption, "minutes", [(cell, cell.mean_minutes) for cell in cells])


def _throughput(name: str, title: str, cells: Sequence[Cell]) -> Picture | None:
    """Samples a second where all cells know their samples, epochs an hour otherwise."""
    sizes = [cell.runs[0].train_samples if cell.runs[0].own else rules.train_samples(cell.model) for cell in cells]
    counted = all(sizes)
    rates = [
        (cell, stats.interval([(size or 0) / one if counted else 3600 / one for one in cell.seconds_per_epoch]))
        for cell, size in zip(cells, sizes, strict=True)
    ]
    unit = "samples per second" if counted else "epochs per hour"
    caption = f"Mean {unit} over whole runs, evaluation included; whiskers are its 95% interval. Longer is better."
    return _bars(name, f"Throughput, {title}", caption, unit, rates)


def _bars(name: str, title: str, caption: str, unit: str, rows: Sequence[tuple[Cell, Interval]]) -> Picture | None:
    """Horizontal bars with each label above its bar: names of systems are too long for an axis."""
    if not any(found.n for _, found in rows):
        return None

    def by_cards(row: tuple[Cell, Interval]) -> Any:
        run = row[0].runs[0]
        return run.accelerator, run.num_accelerators or 0, label(row[0])

    def by_value(row: tuple[Cell, Interval]) -> Any:
        return (row[1].estimate if row[1].n else math.inf), label(row[0])

    rows = sorted(rows, key=by_cards if len(rows) <= _SORTED_FROM else by_value)
    canvas, (axes,) = panels(0.34 * len(rows), left=0.14)
    longest = max(found.high if math.isfinite(found.high) else found.estimate for _, found in rows if found.n)
    for place, (cell, found) in enumerate(rows):
        axes.text(0, place + 0.42, label(cell), va="baseline")
        if not found.n:
            missing = no_result(cell) or "not known"
            axes.text(longest * 0.01, place + 0.85, missing, va="baseline", color=MUTED, style="italic")
            continue
        axes.barh(place + 0.72, found.estimate, 0.34, color=SERIES[0])
        end = found.estimate
        if math.isfinite(found.high):
            axes.errorbar(found.estimate, place + 0.72, xerr=arms(found), color=INK, capsize=2, linewidth=0.9)
            end = max(end, found.high)
        axes.annotate(plain(found.estimate), (end, place + 0.72), (4, 0), textcoords="offset points", va="center")
    axes.set(xlim=(0, longest * 1.16), ylim=(len(rows) + 0.1, 0), xlabel=unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e5 else f"{value:,.0f}")
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    data = [
        {
            "cell": cell.title,
            "accelerators": cell.accelerators,
            "runs": len(cell.runs),
            "failed": cell.failed,
            **in_columns(unit.replace(" ", "_"), found),
        }
        for cell, found in rows
    ]
    described = "; ".join(f"{label(cell)}: {plain(found.estimate)}" for cell, found in rows[:_SORTED_FROM])
    return picture(name, title, caption, f"Horizontal bars of {unit}. {described}.", canvas, data)


def _qualities(name: str, title: str, cells: Sequence[Cell]) -> list[Picture | None]:
    metrics = dict.fromkeys(metric for cell in cells for metric in cell.runs[0].target) or {"quality": None}
    names = {metric: name if number == 0 else f"{name}-{number + 1}" for number, metric in enumerate(metrics)}
    return [_quality(names[metric], title, cells, metric) for metric in metrics]


def _quality(name: str, title: str, cells: Sequence[Cell], metric: str) -> Picture | None:
    curves = [(cell, run, _curve(run, metric)) for cell in cells for run in cell.runs]
    data = [
        {"cell": cell.title, "run": run.path.as_posix(), "epoch": epoch, metric: quality, "reached": run.success}
        for cell, run, curve in curves
        for epoch, quality in curve
    ]
    shown = [cell for cell in _fastest(cells) if any(mine is cell and curve for mine, _, curve in curves)]
    shown = shown[: len(SERIES)]
    if not shown:
        return None
    most = max(1, _MOST_RUNS // len(shown))
    canvas, (axes,) = panels(2.5, legend=len(shown) + 1)
    drawn = 0
    for number, cell in enumerate(shown):
        style = series(number)
        own = [(run, curve) for mine, run, curve in curves if mine is cell and curve]
        for run, curve in own[:most]:
            x, y = zip(*curve, strict=True)
            axes.plot(x, y, color=style["color"], linestyle=style["linestyle"], linewidth=0.8)
            end = {"marker": style["marker"]} if run.success else {"marker": "x", "markeredgewidth": 1.4}
            axes.plot(x[-1:], y[-1:], color=style["color"] if run.success else INK, **end)
        drawn += len(own[:most])
    handles = [Line2D([], [], **series(number), label=label(cell)) for number, cell in enumerate(shown)]
    target = shown[0].runs[0].target.get(metric)
    if target is not None:
        axes.axhline(target, color=INK, linewidth=1, linestyle=(0, (7, 3)))
        handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=(0, (7, 3)), label=f"target {target:g}"))
    word = "quality" if metric == "value" else metric
    axes.set(xlabel="epoch", ylabel=word)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(canvas, handles)
    caption = "One line a run; the symbol at its end tells the cells apart, a cross is a run without a result."
    if drawn < sum(bool(curve) for _, _, curve in curves):
        caption += f" Drawn are {drawn} runs of the {len(shown)} fastest cells; all are in the data."
    described = f"Lines of {word} against epoch for {drawn} runs in {len(shown)} cells."
    return picture(name, f"{word[0].upper()}{word[1:]} by epoch, {title}", caption, described, canvas, data)


def _curve(run: Run, metric: str) -> list[tuple[float, float]]:
    """Epoch and quality of the evaluations that say both."""

    def of(evaluation: Evaluation) -> float | None:
        alone = next(iter(evaluation.quality.values())) if len(evaluation.quality) == 1 else None
        return evaluation.quality.get(metric, alone if len(run.target) < 2 else None)

    return [
        (one.epoch, quality) for one in run.evaluations if one.epoch is not None and (quality := of(one)) is not None
    ]


def _epochs(name: str, title: str, cells: Sequence[Cell]) -> Picture | None:
    """The cumulative distribution above, boxes below."""
    counted = [cell for cell in _fastest(cells) if len(cell.epochs) > 1]
    shown = counted[: len(SERIES)]
    if not shown:
        return None
    canvas, (above, below) = panels(1.7, 0.22 * len(shown) + 0.1, legend=len(shown), gap=0.3)
    last = max(max(cell.epochs) for cell in shown)
    first = min(min(cell.epochs) for cell in shown)
    for number, cell in enumerate(shown):
        values, style = sorted(cell.epochs), series(number)
        share = np.arange(len(values) + 1) / len(values)
        line = {"color": style["color"], "linestyle": style["linestyle"]}
        above.step([first - 1, *values, last + 1], [*share, 1], where="post", **line)
        low, middle, high = np.percentile(values, [25, 50, 75])
        below.plot([values[0], values[-1]], [number, number], color=style["color"], linewidth=1)
        below.barh(number, high - low, 0.5, low, facecolor=style["color"], alpha=0.35, edgecolor=style["color"])
        below.plot(middle, number, color=INK, marker=style["marker"], linestyle="none")
    margin = max(0.05 * (last - first), 0.02 * last)
    below.set(xlabel="epochs to converge", ylim=(len(shown) - 0.4, -0.6), xlim=(first - margin, last + margin))
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    above.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.yaxis.set_visible(False)
    above.set(ylabel="share of runs", ylim=(0, 1.03), xlim=below.get_xlim())
    above.tick_params(labelbottom=False)
    legend(canvas, [Line2D([], [], **series(number), label=label(cell)) for number, cell in enumerate(shown)])
    caption = (
        "Above, the share of converged runs that needed at most so many epochs; below, all (line), the middle half "
        "(box) and the median (symbol)."
    )
    if len(shown) < len(counted):
        caption += f" Drawn are the {len(shown)} fastest of {len(counted)} cells; all are in the data."
    data = [{"cell": cell.title, "epochs": value} for cell in counted for value in cell.epochs]
    described = "; ".join(f"{label(cell)}: median {plain(float(np.median(cell.epochs)))} epochs" for cell in shown)
    return picture(name, f"Epochs to converge, {title}", caption, described + ".", canvas, data)


def _scaling(name: str, title: str, scalings: Sequence[Scaling]) -> Picture | None:
    if not scalings:
        return None
    shown = scalings[: len(SERIES)]
    canvas, (axes,) = panels(2.4, legend=len(shown) + 1)
    most = max(one.counts[-1] / one.counts[0] for one in shown)
    axes.plot([1, most], [1, most], color=INK, linewidth=1, linestyle=(0, (7, 3)))
    handles = [Line2D([], [], color=INK, linewidth=1, linestyle=(0, (7, 3)), label="ideal: as many times faster")]
    for number, one in enumerate(shown):
        factors = [count / one.counts[0] for count in one.counts]
        axes.plot(factors, one.speedup, **series(number))
        above = [(x, y) for x, y, more in zip(factors, one.speedup, one.super_linear, strict=True) if more]
        if above:
            axes.plot(*zip(*above, strict=True), "o", markersize=9, markerfacecolor="none", markeredgecolor=INK)
        counts = f"{', '.join(map(str, one.counts))} cards"
        handles.append(Line2D([], [], **series(number), label=f"{' '.join(one.title.split())[:56]}: {counts}"))
    axes.set(xscale="log", yscale="log", xlabel="times as many cards as the fewest", ylabel="times faster")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis, 1, max(most, *(max(one.speedup) for one in shown)), powers_of_two=True)
    legend(canvas, handles)
    caption = f"Speed-up by {shown[0].basis} against the fewest cards."
    if any(any(one.super_linear) for one in shown):
        caption += " A ring marks a gain beyond the number of cards, which something else must explain."
    if len(shown) < len(scalings):
        caption += f" Drawn are {len(shown)} of {len(scalings)} lines; all are in the data."
    data = [
        {
            "title": one.title,
            "basis": one.basis,
            "cards": count,
            "speedup": gain,
            "efficiency": share,
            "super_linear": more,
        }
        for one in scalings
        for count, gain, share, more in zip(one.counts, one.speedup, one.efficiency, one.super_linear, strict=True)
    ]
    described = "; ".join(f"{one.title}: {plain(one.speedup[-1])} times on {one.counts[-1]} cards" for one in shown)
    return picture(name, f"Scaling, {title}", caption, described + ".", canvas, data)


def _ratios(name: str, title: str, comparisons: Sequence[Comparison]) -> Picture | None:
    """A forest plot: one row a comparison, its ratios below one another."""
    kinds = {"epochs": "epochs", "time per epoch": "per_epoch", "time-to-train": "time"}
    if any(found.expected for found in comparisons):
        kinds["the same, epochs pooled"] = "expected"
    rows = [(found, {word: getattr(found, kind) for word, kind in kinds.items()}) for found in comparisons]
    known = [one for _, ratios in rows for one in ratios.values() if one and one.estimate > 0]
    if not known:
        return None
    canvas, (axes,) = panels(0.62 * len(rows), legend=len(kinds), left=0.14)
    for place, (found, ratios) in enumerate(rows):
        # On paper, so that neither grid nor the line at 1 runs through the words.
        ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
        where: dict[str, Any] = {"va": "baseline", "transform": axes.get_yaxis_transform(), "bbox": ground}
        axes.text(0, place + 0.24, pair_label(found), **where)
        for number, one in enumerate(ratios.values()):
            if one and one.estimate > 0:
                style = series(number) | {"linestyle": "none"}
                axes.errorbar(one.estimate, place + 0.42 + 0.14 * number, xerr=arms(one), elinewidth=1.1, **style)
    ends = [value for one in known for value in (one.low, one.high, one.estimate) if math.isfinite(value) and value > 0]
    low, high = min([*ends, 1 / 1.05]) / 1.02, max([*ends, 1.05]) * 1.02
    axes.axvline(1, color=INK, linewidth=1)
    axes.set(xscale="log", xlim=(low, high), ylim=(len(rows) + 0.05, 0), xlabel="ratio, first over second (log axis)")
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    plain_ticks(axes.xaxis, low, high)
    styles = [series(number) | {"linestyle": "none", "label": word} for number, word in enumerate(kinds)]
    legend(canvas, [Line2D([], [], **style) for style in styles])
    caption = "Ratios with 95% intervals; left of 1 the first needs less. An interval that holds 1 shows no difference."
    data = [
        {"first": found.one.title, "second": found.other.title, "ratio": word, **in_columns("estimate", one)}
        for found, ratios in rows
        for word, one in ratios.items()
        if one
    ]
    described = "; ".join(f"{pair_label(found)}: time {plain(found.time.estimate, 3)}" for found in comparisons)
    return picture(name, f"Ratios, {title}", caption, described + ".", canvas, data)


def _card_line(name: str, found: CardLine) -> Picture:
    """Points, line and band above; residuals below; two peaks that nobody measured with their predictions."""
    peaks, speeds, line = np.array(found.peaks), np.array(found.speeds), found.line
    asked = [float(peaks.min() + peaks.max()) / 2, 1.5 * float(peaks.max())]
    guesses = [line.predict(peak) for peak in asked]
    x = np.linspace(0, asked[1] * 1.05, 25)
    band = [line.predict(float(value)) for value in x]
    canvas, (above, below) = panels(2.3, 0.8, gap=0.28)
    above.fill_between(
        x, [one.low for one in band], [one.high for one in band], color=SERIES[0], alpha=0.15, linewidth=0
    )
    above.plot(x, line.slope * x, color=SERIES[0])
    above.plot(peaks, speeds, "o", color=INK)
    over = [place for place in np.argsort(peaks) if line.residuals[place] >= 0]
    for place, card in enumerate(found.cards):
        # Names stand off the line: left above it, but for the last, and right below it.
        shift, side = (
            ((-4, 5), "right") if place in over[:-1] else ((4, 5), "left") if place in over else ((4, -10), "left")
        )
        where = (float(peaks[place]), float(speeds[place]))
        above.annotate(card, where, shift, textcoords="offset points", ha=side)
    for peak, guess in zip(asked, guesses, strict=True):
        above.errorbar(
            peak, guess.estimate, yerr=arms(guess), marker="D", markerfacecolor="none", color=SERIES[1], capsize=2
        )
    below.axhline(0, color=SERIES[0])
    below.vlines(peaks, 0, line.residuals, color=INK, linewidth=1)
    below.plot(peaks, line.residuals, "o", color=INK)
    above.set(ylabel=found.speed, xlim=(0, x[-1]), ylim=(0, None))
    above.tick_params(labelbottom=False)
    below.set(xlabel=f"{found.peak} in {found.unit}", ylabel="residual", xlim=(0, x[-1]))
    told = " and ".join(
        f"{plain(guess.estimate)} ({plain(guess.low)} to {plain(guess.high)}) at {plain(peak)} {found.unit}"
        for peak, guess in zip(asked, guesses, strict=True)
    )
    caption = (
        f"Least squares through the origin, {line.n} cards: R² {line.r2_uncentred:.3f} uncentred, "
        f"{line.r2_centred:.3f} centred. The band holds a further card in 95% of cases; predicted (diamonds): {told}."
    )
    data: list[dict[str, Any]] = [
        {"card": card, "peak": peak, "speed": speed, "residual": rest, "low": "", "high": ""}
        for card, peak, speed, rest in zip(found.cards, found.peaks, found.speeds, line.residuals, strict=True)
    ]
    for peak, guess in zip(asked, guesses, strict=True):
        told_of = {"card": "predicted", "peak": peak, "speed": guess.estimate, "residual": ""}
        data.append(told_of | {"low": guess.low, "high": guess.high})
    described = (
        f"Points of {line.n} cards with a line of slope {plain(line.slope)} through the origin, residuals below."
    )
    return picture(name, f"Speed against {found.peak}: {found.work}", caption, described, canvas, data)


def _fastest(cells: Iterable[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: cell.mean_minutes.estimate if cell.mean_minutes.n else math.inf)
