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


ANSWER = """
import os, signal
from timetrial.runner.core.signals import StoppedEarly, StopSignal
with StopSignal().listen_at_terminal(raises={raises}) as stop:
    os.kill(os.getpid(), signal.SIGINT)
    assert (stop.name, stop.is_forced) == ("SIGINT", False)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not stop.is_forced
    try:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_forced and not {raises}
    except StoppedEarly as error:
        assert {raises} and "at once" in str(error)
"""


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.integration
def test_first_ctrl_c_is_answered_and_the_second_forces(raises):
    completed = subprocess.run(
        [sys.executable, "-P", "-c", ANSWER.format(raises=raises)], capture_output=True, timeout=60, text=True
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.count("Stopping after this step, with a checkpoint. Ctrl-C again: at once.") == 1


PENDING = """
import os, signal
from timetrial.runner.core.signals import STOP_SIGNALS, StoppedEarly, stop_early
signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
os.kill(os.getpid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGTERM)
try:
    with stop_early():
        print("not reached")
except StoppedEarly as error:
    assert error.code == 12
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(STOP_SIGNALS)
"""
# The child is stopped while it starts, as a worker of joblib that imports for seconds.
CHILDREN = """
import os, signal, subprocess, sys, time
from timetrial.runner.core.signals import StopSignal
with StopSignal().listen_for_children() as stop:
    child = subprocess.Popen([sys.executable, "-P", "-c", sys.argv[1]], stdin=subprocess.PIPE)
    os.kill(os.getpid(), signal.SIGUSR1)
    while not stop.name:
        time.sleep(0.01)
    child.communicate(b"go on")
assert (stop.name, child.returncode) == ("SIGUSR1", 12), (stop.name, child.returncode)
"""
CHILD = """
import sys
sys.stdin.read()
from timetrial.runner.core.signals import stop_early
with stop_early():
    sys.exit("the signal was lost")
"""


@pytest.mark.integration
def test_pending_signals_stop_the_body_once():
    completed = subprocess.run([sys.executable, "-P", "-c", PENDING], capture_output=True, text=True, timeout=60)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == ""
    assert completed.stderr.count("\n") == 1
    assert "run it again" in completed.stderr


@pytest.mark.integration
def test_children_get_the_stop_signals_of_their_parent_even_before_they_listen():
    completed = subprocess.run(
        [sys.executable, "-P", "-c", CHILDREN, CHILD], capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == 0, completed.stderr


DEFERRED = """
import os, signal
from timetrial.runner.core.signals import StoppedEarly, defer_stop, stop_early
reached = False
try:
    with stop_early():
        with defer_stop():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            reached = True
        print("not reached")
except StoppedEarly as error:
    assert (error.code, reached) == (12, True)
"""


@pytest.mark.integration
def test_deferred_signal_arrives_after_the_body():
    completed = subprocess.run([sys.executable, "-P", "-c", DEFERRED], capture_output=True, text=True, timeout=60)
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stderr
    assert "Stopped by SIGINT" in completed.stderr


# Python prints what is raised in a weak reference's callback, as in those of its import locks, and goes on.
IN_A_CALLBACK = """
import os, signal, time, weakref
from timetrial.runner.core.signals import StoppedEarly, stop_early
interrupted = set("a")
reference = weakref.ref(interrupted, lambda _: os.kill(os.getpid(), signal.SIGTERM))
try:
    with stop_early():
        del interrupted
        time.sleep(60)
        print("not reached")
except StoppedEarly:
    pass
"""


@pytest.mark.integration
def test_signal_in_a_callback_that_swallows_exceptions_stops_the_body():
    completed = subprocess.run([sys.executable, "-P", "-c", IN_A_CALLBACK], capture_output=True, text=True, timeout=100)
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stderr
    assert completed.stderr == "timetrial: Stopped by SIGTERM: run it again.\n"
