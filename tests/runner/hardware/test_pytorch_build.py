"""Which card runs on which build of PyTorch."""

import pytest

from timetrial.runner.hardware import wheels
from timetrial.runner.hardware.wheels import Wheel

NEW = Wheel("2.14.1+cu130", "cuda", "13.0", ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))
OLD = Wheel("2.11.0+cu126", "cuda", "12.6", ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"))
ROCM = Wheel("2.11.0+rocm7.0", "rocm", "7.0", ("gfx908", "gfx90a", "gfx942"))


@pytest.mark.parametrize(
    ("wheel", "capability", "fits"),
    [
        (NEW, "7.0", False),  # a V100 on CUDA 13
        (NEW, "7.5", True),  # a T4
        (NEW, "8.9", True),  # an L4 runs what was made for 8.6
        (NEW, "9.0", True),
        (NEW, "10.3", True),
        (OLD, "7.0", True),
        (OLD, "12.0", False),  # without an intermediate form
        (Wheel("", "cuda", "12.8", ("sm_90", "compute_90")), "12.0", True),
        (Wheel("", "cuda", "12.8", ("sm_90a",)), "9.0", True),
        (Wheel("", "cuda", "12.8", ("sm_80", "sm_90a")), "10.0", False),
        (ROCM, "gfx90a:sramecc+:xnack-", True),
        (ROCM, "gfx1100", False),
        (Wheel("2.11.0", "mps"), None, True),
    ],
)
def test_code_for_a_card(wheel, capability, fits):
    assert wheels.holds_code(wheel, capability) == fits


def test_a_driver_runs_its_own_major_version_and_older_ones():
    assert not wheels.driver_runs(NEW, "12.2")
    assert wheels.driver_runs(OLD, "12.2")
    assert wheels.driver_runs(OLD, "13.0")
    assert wheels.driver_runs(ROCM, None)


@pytest.mark.parametrize(
    ("capability", "driver", "backend"),
    [("7.0", "13.0", "cu126"), ("7.5", "12.2", "cu126"), ("9.0", "13.1", "cu130"), ("8.0", None, "cu130"),
     ("gfx90a", None, "auto")],
)  # fmt: skip
def test_the_build_to_install(capability, driver, backend):
    assert f"--torch-backend={backend} torch" in wheels.remedy(capability, driver)


def test_an_intermediate_form_runs_on_later_cards_alone():
    assert not wheels.holds_code(Wheel("", "cuda", "12.8", ("compute_90",)), "8.0")
    assert not wheels.holds_code(Wheel("", "cuda", "12.8", ("compute_86",)), "8.0")


@pytest.mark.parametrize(
    ("capability", "driver", "words"),
    [
        ("7.0", "13.0", "cu126"), ("9.0", "13.0", "cu130"), ("9.0", "12.4", "cu126"), ("12.0", "13.0", "cu130"),
        ("12.0", "12.8", "cu128"), ("7.0", "11.4", "nvidia-driver"), ("gfx90a", None, "auto"),
    ],
)  # fmt: skip
def test_the_remedy_holds_code_that_the_driver_runs(capability, driver, words):
    assert words in wheels.remedy(capability, driver)
