"""Which GPU runs on which build of PyTorch."""

import pytest

from timetrial.runner.hardware.pytorch_build import PyTorchBuild, install_command

NEW = PyTorchBuild("2.14.1+cu130", "cuda", "13.0", ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))
OLD = PyTorchBuild("2.11.0+cu126", "cuda", "12.6", ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"))
ROCM = PyTorchBuild("2.11.0+rocm7.0", "rocm", "7.0", ("gfx908", "gfx90a", "gfx942"))


@pytest.mark.parametrize(
    ("build", "capability", "expected"),
    [
        (NEW, "7.0", False),  # a V100 on CUDA 13
        (NEW, "7.5", True),  # a T4
        (NEW, "8.9", True),  # an L4 runs binaries for 8.6
        (NEW, "9.0", True),
        (NEW, "10.3", True),
        (OLD, "7.0", True),
        (OLD, "12.0", False),  # without PTX
        (PyTorchBuild("", "cuda", "12.8", ("sm_90", "compute_90")), "12.0", True),
        (PyTorchBuild("", "cuda", "12.8", ("sm_90a",)), "9.0", True),
        (PyTorchBuild("", "cuda", "12.8", ("sm_80", "sm_90a")), "10.0", False),
        (ROCM, "gfx90a:sramecc+:xnack-", True),
        (ROCM, "gfx1100", False),
        (PyTorchBuild("2.11.0", "mps"), None, True),
    ],
)
def test_kernels_for_a_gpu(build, capability, expected):
    assert build.has_kernels_for(capability) == expected


def test_driver_supports_its_own_and_older_major_versions():
    assert not NEW.is_supported_by_driver("12.2")
    assert OLD.is_supported_by_driver("12.2")
    assert OLD.is_supported_by_driver("13.0")
    assert ROCM.is_supported_by_driver(None)


@pytest.mark.parametrize(
    ("capability", "driver", "backend"),
    [("7.0", "13.0", "cu126"), ("7.5", "12.2", "cu126"), ("9.0", "13.1", "cu130"), ("8.0", None, "cu130"),
     ("gfx90a", None, "auto")],
)  # fmt: skip
def test_install_command_names_the_backend(capability, driver, backend):
    assert f"--torch-backend={backend} torch" in install_command(capability, driver)


def test_ptx_runs_on_later_architectures_only():
    assert not PyTorchBuild("", "cuda", "12.8", ("compute_90",)).has_kernels_for("8.0")
    assert not PyTorchBuild("", "cuda", "12.8", ("compute_86",)).has_kernels_for("8.0")


@pytest.mark.parametrize(
    ("capability", "driver", "expected"),
    [
        ("7.0", "13.0", "cu126"), ("9.0", "13.0", "cu130"), ("9.0", "12.4", "cu126"), ("12.0", "13.0", "cu130"),
        ("12.0", "12.8", "cu128"), ("7.0", "11.4", "nvidia-driver"), ("gfx90a", None, "auto"),
    ],
)  # fmt: skip
def test_install_command_fits_gpu_and_driver(capability, driver, expected):
    assert expected in install_command(capability, driver)
