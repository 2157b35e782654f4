"""Measured rates beside what is expected of them: data sheet, reference throughput, what training needs."""

from collections.abc import Sequence

from ...hardware.datasheets import accelerator_configs
from ...hardware.readings import LinkReading
from ...record.performance import TRAINING, read_measurements
from ..peak_rows import find_peaks
from .figures import ALL_GPUS, HOST, DeviceResult, Figure

MEMORY, DISK, TOGETHER = "host memory copy", "disk read", "all GPUs together"
"""Names of figures."""
IMAGE_BYTES = 110_000
"""Mean size of an image file of ImageNet."""
_DATA_SHEET, _PCIE_LINK = "data sheet", "the PCIe link"
PHYSICAL = (_DATA_SHEET, _PCIE_LINK)
"""Sources that no rate can exceed."""
# TFLOP/s at the power cap where the data sheet is far above it by design: a T4 at 70 W (NVIDIA Developer Forums, "About
# GPU peak performance", 2023).
_AT_POWER_CAP = {("t4", "fp16"): 24.0}
# GB/s of a lane of PCI Express by generation, with the line code's overhead (PCI-SIG).
_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_MIN_IMAGES_PER_SECOND = 1000.0  # of a GPU without a reference throughput
_IMAGE_SIZE = "data.image_size=224"


def figures_of(device: str, result: DeviceResult, baseline: str) -> list[Figure]:
    """Return the rates of a device, beside the data sheet of the accelerator config `baseline`."""
    sheet, peaks = accelerator_configs().get(baseline, {}), find_peaks(result.rows)
    figures = []
    for compute, value in peaks["tflops"].items():
        at_power_cap = _AT_POWER_CAP.get((baseline, compute))
        expected = at_power_cap or (sheet.get("tflops") or {}).get(compute)
        source = "at its power cap" if at_power_cap else _DATA_SHEET if expected else ""
        figures.append(Figure(f"matrix product {compute}", device, "TFLOP/s", (value,), expected, source))
    if peaks["gb_s"]:
        expected = sheet.get("bandwidth_gb_s")
        source = _DATA_SHEET if expected else ""
        figures.append(Figure("memory copy", device, "GB/s", (peaks["gb_s"],), expected, source))
    expected = pcie_gb_s(result.links)
    for direction in ("host to device", "device to host"):
        rates = [row.gb_s for row in result.rows if f"{direction}, pinned" in row.shape and row.gb_s]
        if rates:
            source = _PCIE_LINK if expected else ""
            figures.append(Figure(direction, device, "GB/s", (max(rates),), expected, source))
    figures += [
        Figure(f"training {rates.name}", device, rates.unit, rates.values, rates.expected, rates.source)
        for rates in result.rates
        if rates.values
    ]
    return figures


def pcie_gb_s(links: LinkReading | None) -> float | None:
    """Return the bandwidth of the link to the host by its generation and width, or else by those of the GPU."""
    for link in (links.pcie, links.pcie_of_gpu) if links else ():
        lane = _LANE_GB_S.get(link.generation or 0)
        if lane and link.width:
            return lane * link.width
    return None


def disk_figure(values: Sequence[float], num_gpus: int, baseline: str) -> Figure:
    """Return the MB/s of reading image files, beside what the GPUs need to train on them."""
    rates = [
        row.value
        for row in read_measurements()
        if row.gpu.lower() == baseline
        and row.quantity == TRAINING
        and row.gpus == 1
        and row.unit == "images/s"
        and row.current
        and _IMAGE_SIZE in row.settings
    ]
    images_per_second = max([_MIN_IMAGES_PER_SECOND, *rates]) * max(num_gpus, 1)
    source = f"{images_per_second:,.0f} images/s of {IMAGE_BYTES / 1000:.0f} KB"
    return Figure(DISK, HOST, "MB/s", tuple(values), images_per_second * IMAGE_BYTES / 1e6, source)


def together_figure(name: str, unit: str, rate: float, apart: Sequence[Figure]) -> Figure:
    """Return the throughput of a run on all GPUs beside the sum of the GPUs apart."""
    of_workload = [figure.value for figure in apart if figure.name == f"training {name}"]
    expected = sum(of_workload) or None
    source = f"{len(of_workload)} GPUs apart" if expected else ""
    return Figure(f"{TOGETHER}, {name}", ALL_GPUS, unit, (rate,), expected, source)
