"""The switch of custom kernels, `engine.kernels`: without them, PyTorch's operations do the same work."""

_enabled = True


def enable(is_enabled: bool) -> None:
    """Let the models that this process builds next use custom kernels, or not."""
    global _enabled
    _enabled = is_enabled


def are_enabled() -> bool:
    """Return whether custom kernels may run."""
    return _enabled
