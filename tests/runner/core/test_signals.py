"""Stop signals, in processes of their own, because they end the process."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from timetrial.runner.core.signals import StopSignal
with StopSignal().listen({arguments}) as stop:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.name == "SIGUSR1"
os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.parametrize(("arguments", "code"), [("", -signal.SIGUSR1), ("ignore_after=True", 0)])
@pytest.mark.integration
def test_signal_after_the_body_ends_the_process_unless_ignored(arguments, code):
    completed = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(arguments=arguments)], capture_output=True, timeout=60
    )
    assert completed.returncode == code, completed.stderr
