"""Tables of micro-benchmarks, and the roofs beside the data sheet."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core.console import print_text
from ..core.formatting import format_number
from ..hardware.datasheets import find_datasheet
from .peak_rows import Row, find_peaks


def show_peaks(console: Console, device_name: str, rows: Sequence[Row]) -> None:
    """Print the roofs, compared with the data sheet."""
    datasheet, peaks = find_datasheet(device_name) or {}, find_peaks(rows)
    console.print(f"\n[bold]Peaks of {escape(device_name)}[/bold]", highlight=False)
    for compute, tflops in peaks["tflops"].items():
        datasheet_tflops = (datasheet.get("tflops") or {}).get(compute)
        line = f"{_peak_line(compute, tflops, 'TFLOP/s', datasheet_tflops)} ({peaks['achieved_by'][compute]})"
        print_text(console, line, highlight=False)
    if peaks["gb_s"]:
        console.print(_peak_line("memory", peaks["gb_s"], "GB/s", datasheet.get("bandwidth_gb_s")), highlight=False)
    if peaks["left_out"]:
        rates = f"{_format_left_out(peaks['left_out'])} TFLOP/s by the count."
        text = f"  No roof, because they can take fewer operations than are counted: {rates}"
        print_text(console, text, highlight=False)


def _format_left_out(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return such as "convolution (fp32 0.08, fp16 0.005), attention (fp32 0.01)"."""
    rates: dict[str, list[str]] = {}
    for row in rows:
        rates.setdefault(row["kind"], []).append(f"{row['compute']} {format_number(row['tflops'])}")
    return ", ".join(f"{kind} ({', '.join(same)})" for kind, same in rates.items())


def _peak_line(name: str, value: float, unit: str, datasheet_value: float | None) -> str:
    percent = f", {value / datasheet_value:.0%} of the data sheet's {datasheet_value:,g}" if datasheet_value else ""
    return f"  {name:<14}{format_number(value)} {unit}{percent}"


def show_kind(console: Console, kind: str, rows: Sequence[Row]) -> None:
    """Print a table with a line per case."""
    has_tflops = any(row.tflops for row in rows)
    columns: dict[str, Callable[[Row], str]] = {
        "shape": lambda row: row.shape,
        "storage": lambda row: row.storage,
        **({"compute": lambda row: row.compute} if any(row.compute for row in rows) else {}),
        "time": lambda row: _format_duration(row.seconds) if row.seconds else escape(row.outcome),
        "spread": lambda row: f"{row.spread:.1%}" if row.repeats > 1 else "",
        ("TFLOP/s" if has_tflops else "GB/s"): lambda row: format_number(row.tflops if has_tflops else row.gb_s),
        **({"MHz": lambda row: format_number(row.core_mhz)} if any(row.core_mhz for row in rows) else {}),
        **({"W": lambda row: format_number(row.watts)} if any(row.watts for row in rows) else {}),
        **({"": lambda row: "host-bound" if row.host_bound else ""} if any(row.host_bound for row in rows) else {}),
    }
    table = Table(title=kind, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("shape", "storage", "compute") else "right")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    console.print()
    console.print(table)


def _format_duration(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
