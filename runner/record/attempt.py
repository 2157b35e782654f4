"""A start of a run, as the run record keeps it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Attempt:
    """One start of the launcher on this run; every resume adds one."""

    started_at: float
    """Wall time in seconds since the epoch."""
    hostname: str
    """Host of the launcher."""
    pid: int
    """Process id of the launcher."""
    startup: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase from the command to the start of the clock, on the first rank."""
    overrides: tuple[str, ...] = ()
    """Overrides of the command, with those that follow from them, such as `workload=` from `recipe=`."""
    boot: str = ""
    """Identity of the boot of the host, which tells apart hosts of one name; empty where the system states none."""
    earlier_runs: int = 0
    """Runs that the process of the first rank had made before: with `launcher.reuse_process`, or `launcher=inline`."""

    @property
    def host(self) -> tuple[str, str]:
        """Name and boot of the host: equal for two attempts only if they were made on one machine."""
        return self.hostname, self.boot
