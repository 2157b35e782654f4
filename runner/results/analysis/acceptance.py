"""Whether the machines of a comparison were accepted by `timetrial accept`."""

from collections.abc import Mapping, Sequence

from ...record.run_record import Acceptance


def describe_acceptance(sides: Mapping[str, Sequence[Acceptance | None]]) -> list[str]:
    """Return a sentence for each side with runs on a machine that was never accepted, if any run was on one that was.

    `sides` has the acceptance of each run of timetrial by the title of its group.
    """
    if not any(accepted for side in sides.values() for accepted in side):
        return []
    return [
        f"{side.count(None)} of {len(side)} runs of {title} were made on a machine that was never accepted "
        "(timetrial accept)"
        for title, side in sides.items()
        if None in side
    ]
