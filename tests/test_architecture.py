"""The architecture: packaging, the `datasets` trap, and who may import or name what."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("conf", "datasets", "runner", "workloads")
FRAMEWORKS = ("torch", "tensorflow")


@pytest.fixture
def sources(root):
    return [path for folder in PACKAGES for path in sorted((root / folder).rglob("*.py"))]


@pytest.fixture
def tracked(root):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (root / name).exists()]


def test_folders_are_the_architecture(tracked):
    folders = {name.split("/")[0] for name in tracked if "/" in name and not name.startswith(".")}
    assert folders == {"workloads", "runner", "conf", "datasets", "tests", "scripts", "deploy", "docs"}


def imports_of(path, root):
    """Yield (line, module path below the root, names) of every relative import, and fail on absolute internal ones."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "timetrial" for alias in node.names), (path, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                assert (node.module or "").split(".")[0] != "timetrial", (path, node.lineno)
                continue
            base = path.parents[node.level - 1]
            yield node.lineno, base.joinpath(*(node.module or "").split(".")), [alias.name for alias in node.names]


def test_internal_imports_resolve_in_a_plain_clone(sources, root):
    """Without an installation and under any folder name, as an editor resolves them."""
    for path in [*sources, root / "__main__.py"]:
        for line, target, names in imports_of(path, root):
            assert target == root or root in target.parents, (path, line)
            for name in names:
                module = target / name
                found = (
                    target.with_suffix(".py").exists() or module.with_suffix(".py").exists() or module.is_dir()
                    or _defines(target / "__init__.py", name)
                )  # fmt: skip
                assert found, (path, line, name)


def _defines(path, name):
    return path.exists() and re.search(rf"^{name}\b", path.read_text(), re.M) is not None


def test_no_workload_imports_another(sources, root):
    workloads = root / "workloads"
    for path in (path for path in sources if workloads in path.parents):
        own = path.relative_to(workloads).parts[0]
        for line, target, _ in imports_of(path, root):
            if workloads in target.parents:
                other = target.relative_to(workloads).parts[0].removesuffix(".py")
                assert other == "common" or (other == own and own != "common"), (path, line)


def test_no_configuration_names_a_class_of_another_workload(root):
    for path in (root / "conf" / "workload").glob("*.yaml"):
        packages = set(re.findall(r"timetrial\.workloads\.(\w+)", path.read_text()))
        assert packages <= {path.stem, "common"}, path


def test_the_runner_names_no_workload(root):
    names = [path.stem for path in (root / "conf" / "workload").glob("*.yaml")]
    for path in (root / "runner").rglob("*.py"):
        if "results" not in path.parts:  # which reads published logs
            assert not re.search(rf"\b({'|'.join(names)})\b", path.read_text(), re.I), path


@pytest.mark.integration
@pytest.mark.parametrize("module", ["runner.cli.app", "runner.results.report.build", "runner.results.parse.sources"])
def test_needs_no_framework(module, root):
    program = f"import sys, timetrial.{module}; print(*({{*sys.modules}} & {set(FRAMEWORKS)}))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", ["runner/training/loop.py", "runner/training/events.py", "runner/training/engine.py"])
def test_the_loop_knows_no_framework(root, name):
    assert not installed_imports(root / name) & set(FRAMEWORKS)


def installed_imports(path):
    """Return the names of the packages that a file imports, at any level of it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {name.split(".")[0] for name in names}


def test_triton_is_imported_in_one_place(sources, root):
    """Which is the one that has to know what to do without it."""
    importers = [path.relative_to(root).as_posix() for path in sources if "triton" in installed_imports(path)]
    assert importers == ["workloads/common/nn/triton_support.py"]


def test_only_hardware_names_vendors(sources):
    vendors = re.compile(r"\b(cuda|rocm|hip|xpu|mps|nccl|nvml|amdsmi)\b|torch\.cuda|is_cuda", re.I)
    for path in sources:
        if path.parent.name == "hardware" or path.name in ("gpu_decode.py", "nvjpeg.py"):  # NVIDIA's JPEG engines
            continue
        text = path.read_text()
        if path.parent.name == "config":  # the key peer_to_peer takes its default from NCCL's variable
            text = text.replace("NCCL_P2P_DISABLE", "")
        assert not [line for line in text.splitlines() if vendors.search(line)], path


def test_only_the_log_and_its_check_know_log_keys(sources):
    knowing = {path.name for path in sources if "mlperf_logging" in path.read_text()}
    assert knowing <= {"log_writer.py", "log_lines.py", "official_checker.py", "convergence.py"}


def test_nothing_in_a_step_waits_for_the_device(root):
    """In the modules that run in a step, two functions read from the device, and none within it; RunAhead polls."""
    reading = {"item", "tolist", "cpu", "numpy", "synchronize", "float"}
    steps = [root / "runner" / "hardware" / "device_graphs.py"]
    names = ("torch_engine", "captured_steps", "gradient_reduction", "replication", "row_shards")
    steps += [root / "runner" / "training" / f"{name}.py" for name in names]
    functions = [(path, node) for path in steps for node in ast.walk(ast.parse(path.read_text()))]
    found = {
        (path.stem, function.name)
        for path, function in functions
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and (getattr(call.func, "attr", "") or getattr(call.func, "id", "")) in reading
    }
    assert found == {("torch_engine", "synchronize"), ("torch_engine", "state_dict")}


def test_record_fields_are_attributes(sources):
    """No string look-ups of the run record outside of runner/record/."""
    lookup = re.compile(r"""\b(run_record|training|throughput|telemetry|verdict|cost)(\[["']|\.get\(["'])""")
    for path in sources:
        if path.parent.name not in ("record", "mlperf") and "runner" in path.parts:
            assert not [line for line in path.read_text().splitlines() if lookup.search(line)], path


# One transcription of a model each, which reads best as a whole.
LONG_FILES = {"tests/workloads/maskrcnn/oracle.py", "tests/workloads/ssd/oracle.py"}


def test_files_stay_small(root, tracked):
    names = {name for name in tracked if name.endswith(".py")}
    long_files = {name for name in names if len((root / name).read_text().splitlines()) > 300}
    assert long_files == LONG_FILES


def test_no_path_of_a_machine_is_committed(root, tracked):
    forbidden = re.compile(r"file:///|/root/|/work/|/tmp/[a-z]")
    for name in tracked:
        if name != "tests/test_architecture.py" and not name.endswith((".png", ".tar.xz")):
            assert not forbidden.search((root / name).read_text()), name


def test_the_datasets_trap_is_closed_in_the_checkout(root):
    assert not list((root / "datasets").rglob("__init__.py"))
    assert root not in [Path(entry or ".").resolve() for entry in sys.path]
    program = "import importlib.util as u; s = u.find_spec('datasets'); print(s.origin if s else None)"
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert str(root) not in done.stdout
    from timetrial.datasets.formats import movielens

    assert Path(movielens.__file__).parent == root / "datasets" / "formats"


@pytest.mark.integration
def test_the_sdist_holds_the_repository_and_the_wheel_the_package_and_nothing_else(root, tracked, tiny_ncf, tmp_path):
    """Built, unpacked beside a stand-in for Hugging Face's `datasets`, used from the checkout and from elsewhere."""
    copy = tmp_path / "foo"
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((root / name).read_bytes())
    build = [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    built = subprocess.run(build, cwd=copy, check=True, capture_output=True, text=True)  # the wheel from the sdist
    assert "is absent from the `packages` configuration" not in built.stdout + built.stderr
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in members if re.match(r"PKG-INFO|setup\.cfg|timetrial\.egg-info/", name)}
    assert members - made == {name for name in tracked if not name.startswith(".github/")}
    wheel = next((tmp_path / "dist").glob("*.whl"))
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not re.match(r"timetrial-[\d.]+\.dist-info/", name)}
    expected = {name for name in tracked if name.split("/")[0] in PACKAGES and name.endswith((".py", ".yaml", ".j2"))}
    expected |= {name for name in tracked if "/reference_data/" in name} | {"__init__.py", "__main__.py", "py.typed"}
    assert names == {f"timetrial/{name}" for name in expected}
    venv.create(tmp_path / "venv", system_site_packages=False)
    site = next((tmp_path / "venv").rglob("site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    (site / "datasets").mkdir()
    (site / "datasets" / "__init__.py").write_text("face = 'hugging'\n")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(here) + "\n")
    program = "import datasets, timetrial.datasets.formats.movielens as m; print(datasets.face, m.__file__)"
    for folder in (root, tmp_path):
        done = subprocess.run(
            [tmp_path / "venv/bin/python", "-P", "-c", program], cwd=folder, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["hugging", str(site / "timetrial/datasets/formats/movielens.py")]
    overrides = [*tiny_ncf, "recipe.max_epochs=1", "runs_dir=runs", "target.hit_rate=0.01"]
    for words in (["list"], ["run", *overrides], ["report", "runs"], ["new-workload", "tiny_lm"], ["check", "runs"]):
        command = [tmp_path / "venv/bin/python", "-P", "-m", "timetrial", *words]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "report" / "report.html").exists()
