"""Run a configuration in this process and write down which files are opened, and when the clock starts.

    python -P trace_file_opens.py TRACE OVERRIDE...

Each line of TRACE is a marker of the MLPerf log, `init_start`, `run_start` or `run_stop`, or the path of an opened file
or a listed folder. Processes that are forked write to it too.
"""

import os
import sys

OPENING = {"open", "os.listdir", "os.scandir"}


def main():
    from rich.console import Console

    from timetrial.runner.config.compose import compose
    from timetrial.runner.core.errors import Exit
    from timetrial.runner.launch.run import launch
    from timetrial.runner.mlperf.log_writer import MLPerfLog
    from timetrial.runner.training.events import InitStarted, RunStarted, RunStopped

    trace = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    node = compose(sys.argv[2:]).node
    write_log = MLPerfLog.__call__

    def write_log_and_marker(self, event):
        write_log(self, event)
        for kind, marker in ((InitStarted, b"init_start\n"), (RunStarted, b"run_start\n"), (RunStopped, b"run_stop\n")):
            if isinstance(event, kind):
                os.write(trace, marker)

    def write_path(event, arguments):
        if event in OPENING and isinstance(arguments[0], (str, bytes, os.PathLike)):
            os.write(trace, os.path.abspath(os.fsencode(arguments[0])) + b"\n")

    MLPerfLog.__call__ = write_log_and_marker
    sys.addaudithook(write_path)
    result = launch(node, Console(stderr=True))
    sys.exit(0 if result.exit_code in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED) else int(result.exit_code))


if __name__ == "__main__":
    main()
