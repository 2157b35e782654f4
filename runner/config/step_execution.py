"""How training steps are executed unless a user says otherwise: compiled, captured in device graphs, or eagerly."""

from .schema import WorkloadConfig

_OWN_GRAPH_MODES = ("reduce-overhead", "max-autotune")  # their compiled code records device graphs itself


def can_capture(compile_mode: str | None) -> bool:
    """Return whether steps can be captured in device graphs: some modes of the compiler record graphs of their own."""
    return compile_mode not in _OWN_GRAPH_MODES


def default_compile_mode(engine: str, accelerator_compiles: bool, scale: str, workload: WorkloadConfig) -> str | None:
    """Return the default of `engine.compile`."""
    pays = engine == "torch" and accelerator_compiles and scale == "reference" and workload.compiled
    return "default" if pays else None


def default_capture(compile_mode: str | None, scale: str, kernels: bool) -> bool:
    """Return the default of `engine.capture`.

    Kernels of large compiled models take longer than their launches. Operations that replace custom kernels may wait
    for the device, which cannot be captured.
    """
    return kernels and (compile_mode is None or scale != "reference")
