"""Every Triton kernel compiles for NVIDIA's and AMD's GPUs without one, as a step of its workload would launch it."""

import ast
import importlib
import sys

import pytest
import torch

from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import resolve_classes, validate
from timetrial.runner.launch.build_engine import build_engine
from timetrial.runner.launch.staging import data_settings
from timetrial.runner.training.distributed import World
from timetrial.workloads.common.detection import image_kernels
from timetrial.workloads.common.imagenet import kernels as imagenet_kernels
from timetrial.workloads.common.nn import dropout, triton_support
from timetrial.workloads.common.vision.gpu_decode import GpuImages
from timetrial.workloads.ssd import kernels as ssd_kernels

pytest.importorskip("triton", reason="PyTorch's wheels for this platform come without Triton")
pytestmark = pytest.mark.integration

KIB = 1024
# Name -> arguments of GPUTarget, and the most shared memory that a program may use (CUDA's and AMD's manuals).
TARGETS = {
    "gfx942": ("hip", "gfx942", 64, 64 * KIB),
    "gfx90a": ("hip", "gfx90a", 64, 64 * KIB),
    "sm_70": ("cuda", 70, 32, 96 * KIB),
    "sm_75": ("cuda", 75, 32, 64 * KIB),
    "sm_80": ("cuda", 80, 32, 163 * KIB),
    "sm_90": ("cuda", 90, 32, 227 * KIB),
}
# Each kernel is compiled for one of NVIDIA's, which takes a minute less; tests of single kernels compile for several.
NVIDIA = [name for name in TARGETS if name.startswith("sm_")]
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "i1",
}
STEPS = [
    ["workload=ncf", "recipe.training.mf_dim=16", "recipe.training.mlp_layer_sizes=[64,64,32,16]"],
    ["workload=gnmt", "precision=fp32", "recipe.training.dropout=0.1"],
    ["workload=transformer", "recipe.training.hidden_size=128", "recipe.training.dropout=0.1"],
    ["workload=transformer", "recipe.training.hidden_size=128", "recipe.data.max_length=80"],
    ["workload=gpt", "recipe.training.hidden_size=128"],
    ["workload=ssd", "precision=fp32", "recipe.global_batch_size=2"],
    ["workload=maskrcnn", "precision=fp32", "recipe.global_batch_size=2"],
]


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """The first launch of each kernel: {(module, name): (kernel, types of arguments, constants, options)}.

    A training step and an evaluation of each workload run on the CPU. No kernel computes anything: tensors that they
    would fill are zeros.
    """
    with pytest.MonkeyPatch.context() as patch:
        recorded = {}

        def record(kernel, *arguments, grid, warmup, **named):
            recorded.setdefault((kernel.__module__, kernel.__name__), describe(kernel, arguments, named))

        patch.setattr(triton_support.triton.JITFunction, "run", record)
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
            patch.setattr(owner, name, zeroed(getattr(owner, name)))
        for overrides in STEPS:
            node = compose(["precision=bf16", *overrides, "accelerator=cpu", "data=synthetic", "seed=1",
                            f"data_dir={tmp_path_factory.mktemp('data')}"]).node  # fmt: skip
            config = validate(node)
            _, data_class = resolve_classes(config)
            take_kernels(patch)
            data_class.prepare_data(data_settings(config, data_class), lambda *progress: None)
            build_engine(config, World(), torch.device("cpu")).warm_up(1)
        launch_image_kernels()
        dropout._draw_bits(dropout.draw_seed(torch.device("cpu")), 100, 10)
    return recorded


def launch_image_kernels():
    """Launch the kernels that read decoded images, which only GPUs of NVIDIA decode."""
    cpu, sizes, flipped = torch.device("cpu"), torch.tensor([[8, 8]], dtype=torch.int32), torch.tensor([False])
    addresses, boxes = torch.zeros(1, dtype=torch.int64), torch.tensor([[0, 0, 8, 8]], dtype=torch.int32)
    imagenet_kernels.crop_and_resize(GpuImages(addresses, sizes, cpu, []), boxes, flipped, 8)
    image_kernels.crop_and_resize(addresses, sizes, boxes, flipped, sizes, (8, 8), (0, 0, 0), cpu)
    ssd_kernels.jitter(torch.zeros(1, 8, 8, 3, dtype=torch.uint8), torch.ones(1, 4), torch.arange(4)[None])


def zeroed(allocate):
    return lambda *arguments, **named: allocate(*arguments, **named).zero_()


def take_kernels(patch):
    """Let the imported models take the path of a GPU."""
    for name, module in list(sys.modules.items()):
        if name.startswith("timetrial.workloads."):
            for function in ("triton_available", "fits_on_chip"):
                if hasattr(module, function):
                    patch.setattr(module, function, lambda *arguments: True)


def describe(kernel, arguments, named):
    names = [parameter.name for parameter in kernel.params]
    options = {name: value for name, value in named.items() if name not in names}
    bound = kernel.signature.bind(*arguments, **{name: named[name] for name in named if name in names})
    bound.apply_defaults()
    types, constants = {}, {}
    for parameter in kernel.params:
        value = bound.arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            types[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            types[parameter.name] = f"*{TYPES[value.dtype]}"
        else:
            types[parameter.name] = {bool: "i1", int: "i32", float: "fp32"}[type(value)]
    return kernel, types, constants, options


def launched_kernels(root):
    """Return (module, name) of each kernel that the source launches: `kernel[grid](...)`."""
    found = set()
    for path in (root / "workloads").rglob("*.py"):
        module = ".".join(("timetrial", *path.relative_to(root).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                name = ast.unparse(node.func.value).split(".")
                owner = importlib.import_module(module)
                for part in name[:-1]:
                    owner = getattr(owner, part, None)
                kernel = getattr(owner, name[-1], None)
                if isinstance(kernel, triton_support.triton.JITFunction):
                    found.add((kernel.__module__, kernel.__name__))
    return found


def test_every_kernel_of_the_workloads_is_launched(launches, root):
    assert launched_kernels(root) - set(launches) == set()
    assert len(launches) > 40


@pytest.mark.parametrize("name", TARGETS)
def test_kernels_compile(launches, name):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    *target, shared_memory = TARGETS[name]
    chosen = list(launches.values())
    if name in NVIDIA:
        chosen = chosen[NVIDIA.index(name) :: len(NVIDIA)]
    for kernel, types, constants, options in chosen:
        compiled = compile(ASTSource(kernel, types, constants), target=GPUTarget(*target), options=options)
        assert "cubin" in compiled.asm or "hsaco" in compiled.asm
        assert compiled.metadata.shared <= shared_memory, kernel
