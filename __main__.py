"""`python -m timetrial`."""

from timetrial.runner.cli import main

if __name__ == "__main__":
    main()
