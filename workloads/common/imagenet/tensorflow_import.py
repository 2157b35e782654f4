"""Import TensorFlow without the lines that it writes before its log level can be set. Needs the extra."""

import os
from typing import Any


def _import_quietly() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
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
