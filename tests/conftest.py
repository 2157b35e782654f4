"""Fixtures of all tests, the tiers, and the guard against the `datasets` trap: the checkout is never importable."""

import functools
import os
import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# `python -m pytest` puts the working directory on the path: `import datasets` would find ours, not Hugging Face's.
sys.path[:] = [entry for entry in sys.path if Path(entry or os.getcwd()).resolve() != ROOT]
# A background job of a shell ignores Ctrl-C, and so would every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A small NCF run: seconds on one core.
TINY_NCF = [
    "accelerator=cpu",
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
]
# The tests that each --tier selects, by `tier_of`.
TIERS = {"unit": {"unit"}, "full": {"unit", "full"}, "gpu": {"gpu"}, "all": {"unit", "full", "gpu"}}
SLOW_MARKERS = {"integration", "e2e", "tensorflow", "slurm"}
# Reasons for which a test of the full tier may be skipped.
ALLOWED_SKIPS = [
    r"^no package index can be reached$",
    r"^describes a machine without accelerator$",
    r"^TIMETRIAL_PUBLISHED_LOGS is not set$",
    r"^the file system of temporary files keeps them in memory$",
    r"^may not mount a small disk$",
    *([r"^needs TensorFlow$"] if sys.version_info >= (3, 14) else []),  # which has no wheels for it
]


def pytest_addoption(parser):
    parser.addoption("--tier", choices=[*TIERS], default="all", help="tests to run")


def tier_of(markers):
    """The tier that a test with these markers belongs to; the full tier holds the unit tests too."""
    if "gpu" in markers:
        return "gpu"
    return "full" if SLOW_MARKERS & markers else "unit"


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "interpret" in item.fixturenames:
            item.add_marker("integration")
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("default"))  # compilers warn of what they cannot do
    tier = config.getoption("--tier")
    selected = TIERS[tier]
    kept, dropped = [], []
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        (kept if tier_of(markers) in selected else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.accelerator.is_available():
            pytest.skip("no accelerator here")
    if item.get_closest_marker("tensorflow"):
        if find_spec("tensorflow") is None:
            pytest.skip("needs TensorFlow")
        configure_tensorflow()


@functools.cache
def configure_tensorflow():
    """Give TensorFlow two CPUs for two replicas, before it computes anything in this process."""
    import torchvision  # noqa: F401 - Triton, which it imports, crashes if TensorFlow was imported before

    from timetrial.workloads.common.imagenet.tensorflow_import import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


_unexpected_skips = []


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS):
            _unexpected_skips.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session, exitstatus):
    is_worker = hasattr(session.config, "workerinput")
    if session.config.getoption("--tier") == "full" and _unexpected_skips and not is_worker and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--tier") == "full" and _unexpected_skips:
        terminalreporter.section("skips that fail the full tier")
        for line in _unexpected_skips:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _default_compiler_stance():
    """Compile in each test, even after one whose run has told the compiler of this process to stop."""
    yield
    if "torch._dynamo" in sys.modules:
        import torch

        torch.compiler.set_stance("default")


@pytest.fixture
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture
def tiny_ncf() -> list[str]:
    """Overrides of a small NCF run: seconds on one core."""
    return list(TINY_NCF)


@pytest.fixture
def compose():
    """Compose a configuration as `timetrial run` does: compose("workload=ncf", ...) -> DictConfig."""
    from timetrial.runner.config.compose import compose

    def compose_on_cpu(*overrides):
        accelerator = [] if any(override.startswith("accelerator=") for override in overrides) else ["accelerator=cpu"]
        return compose([*accelerator, *overrides]).node

    return compose_on_cpu


@pytest.fixture
def launch(compose, tmp_path):
    """Run a composed configuration in this process on tiny data: launch(*overrides) -> (exit code, run directory)."""
    from rich.console import Console

    from timetrial.runner.launch.run import launch

    folders = [f"runs_dir={tmp_path}/runs", f"data_dir={tmp_path}/data", "launcher=inline"]
    tiny = [*TINY_NCF, "recipe.global_batch_size=2048", "recipe.max_epochs=2", "recipe.target.v05.hit_rate=0.2"]

    def run(*overrides):
        keys = {override.split("=")[0] for override in overrides}
        defaults = [override for override in (*folders, *tiny) if override.split("=")[0] not in keys]
        result = launch(compose(*defaults, *overrides), Console(quiet=True))
        return result.exit_code, result.run_dir

    return run


@pytest.fixture
def interpret():
    """Run a program with Triton's kernels interpreted, in a process of its own: Triton decides at import."""
    import subprocess

    pytest.importorskip("triton")

    def run(program, *arguments):
        completed = subprocess.run(
            [sys.executable, "-P", "-c", program, *arguments],
            env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "tests" / "interpreted")},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert completed.returncode == 0, completed.stderr

    return run


# Kernels see the interpreter's `range` too, so only its loops over the grid are shortened. Tensors are on the CPU and
# need no copy back, which would touch all of their memory.
LAST_PROGRAM = """
import sys
from triton.runtime import interpreter

grid_loops = interpreter.GridExecutor.__call__.__code__
interpreter.range = lambda *bounds: range(*bounds)[-1 if sys._getframe(1).f_code is grid_loops else 0:]
interpreter.GridExecutor._restore_args_dev = lambda *arguments: None
"""


@pytest.fixture
def interpret_last_program(interpret):
    """Like `interpret`, but run only the last program of each kernel, whose offsets are the largest.

    So tensors of more than 2^31 elements can be tested: memory that no program touches is reserved but not used.
    """
    return lambda program, *arguments: interpret(LAST_PROGRAM + program, *arguments)


@pytest.fixture
def compile_for_gpu():
    """Compile a Triton kernel without a GPU: the interpreter checks no types, and shared memory is limited."""
    compiler = pytest.importorskip("triton.compiler")
    backends = pytest.importorskip("triton.backends.compiler")

    def run(kernel, capability, types, constants):
        """Return the compiled kernel; `types` are those of arguments other than int32 and `constants`."""
        constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
        signature = dict.fromkeys(kernel.arg_names, "i32") | types | dict.fromkeys(constants, "constexpr")
        source = compiler.ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, constants)
        compiled = compiler.compile(source, target=backends.GPUTarget("cuda", capability, 32))
        assert compiled.metadata.shared <= (64 if capability == 75 else 99) * 1024
        return compiled

    return run
