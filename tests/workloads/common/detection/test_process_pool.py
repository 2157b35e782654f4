"""Processes of a pool end with a killed parent."""

import contextlib
import subprocess
import sys
import time

import psutil


def test_processes_end_with_a_killed_parent():
    program = (
        "if __name__ == '__main__':\n"
        "    import os, time\n"
        "    from timetrial.workloads.common.detection.process_pool import process_pool\n"
        "    pool = process_pool(2)\n"
        "    print(*{pool.submit(os.getpid).result() for _ in range(9)}, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout
            workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
            assert workers
            for worker in workers:
                worker.terminate()  # workers leave signals to the parent
            time.sleep(0.2)
            assert all(is_alive(worker) for worker in workers)
            children = psutil.Process(parent.pid).children(recursive=True)
            assert {worker.pid for worker in workers} < {child.pid for child in children}
        finally:
            parent.kill()
    deadline = time.monotonic() + 10
    while any(is_alive(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
