"""Import TensorFlow with its fast kernels for CPUs, and without the lines that it writes first. Needs the extra."""

import os
from typing import Any


def _import_quietly() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # By itself, TensorFlow takes oneDNN's kernels on CPUs with AVX-512 only. On two cores without AVX-512 they train
    # ResNet-50 with 125 images/s instead of 26.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    devnull, stderr = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(devnull, 2)
    try:
        import tensorflow
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
    return tensorflow


tensorflow = _import_quietly()
