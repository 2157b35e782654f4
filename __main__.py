"""`python -m timetrial`."""

from .runner.cli.main import main

if __name__ == "__main__":
    main()
