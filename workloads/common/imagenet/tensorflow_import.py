"""TensorFlow, imported without the lines that it writes before its log level can be set. Needs the extra."""

import os
from typing import Any


def _quietly() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    silence, screen = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(silence, 2)
    try:
        import tensorflow
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        os.close(silence)
    return tensorflow


tensorflow = _quietly()
