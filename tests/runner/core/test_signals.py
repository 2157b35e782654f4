"""Stop signals, in processes of their own: what they do to a process cannot be tried in this one."""

import signal
import subprocess
import sys

import pytest

TRIED = """
import os, signal
from timetrial.runner.core.signals import StopSignal
with StopSignal().listen({how}) as stop:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.name == "SIGUSR1"
os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.parametrize(("how", "code"), [("", -signal.SIGUSR1), ("ignore_after=True", 0)])
def test_a_signal_that_comes_after_the_body(how, code):
    done = subprocess.run([sys.executable, "-P", "-c", TRIED.format(how=how)], capture_output=True, timeout=60)
    assert done.returncode == code, done.stderr
