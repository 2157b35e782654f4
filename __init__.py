"""timetrial: how long a card takes to train real models to real quality."""

__version__ = "0.1.0"
