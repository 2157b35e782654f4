"""What the official checker lets pass in logs of timetrial: their settings, their clock, the order of their blocks."""

from collections.abc import Iterator, Sequence
from typing import Any

from .log_lines import absence, first, metadata
from .log_writer import RESUMED, TARGET
from .official_checker import Header

BLOCK = ("block_start", "epoch_start", "epoch_stop", "eval_start", "eval_accuracy", "eval_stop", "block_stop")
"""The lines of a block, in order."""
_REQUIRED = ("seed", "global_batch_size", "gradient_accumulation_steps", TARGET)


def settings_problems(lines: Sequence[Any]) -> list[str]:
    """Return what no log may contain, even that of a run that was stopped."""
    return [*_falling_times(lines), *_contradictory_settings(lines), *_empty_blocks(lines)]


def _falling_times(lines: Sequence[Any]) -> Iterator[str]:
    """Yield a problem for the first line of an own log whose time is negative or earlier than that of the line before.

    Logs of others may be the output of several processes, whose lines need not be in order.
    """
    before = 0.0
    for line in lines:
        if line.timestamp < before:
            yield f"The line {line.key} has an earlier time than the line before it: the clock ran backwards."
            return
        before = line.timestamp


def _contradictory_settings(lines: Sequence[Any]) -> Iterator[str]:
    """Yield a problem for an own log that states several targets, or a global batch without samples."""
    targets = [line.value["value"] for line in lines if line.key == TARGET]
    if any(target != targets[0] for target in targets):
        yield f"The line {TARGET} occurs with different values: a run has one target."
    batch = first(lines, "global_batch_size")
    if isinstance(batch, int | float) and batch < 1:
        yield f"The value of global_batch_size is {batch}: a batch has at least one sample."


def _empty_blocks(lines: Sequence[Any]) -> Iterator[str]:
    """Yield a problem for each block of an own log whose logged throughput is 0.

    A block that was interrupted after its last step starts twice: its samples were trained before the interruption.
    """
    first_epochs: list[Any] = []  # of the blocks that have started
    for line in lines:
        if line.key == "block_start":
            first_epochs.append(metadata(line).get("first_epoch_num"))
        stats = line.value["value"] if line.key == "tracked_stats" else None
        is_empty = isinstance(stats, dict) and stats.get("throughput") == 0
        if is_empty and first_epochs.count(first_epochs[-1] if first_epochs else None) < 2:
            yield f"The block that ends with epoch {line.value['metadata'].get('step')} trained 0 samples."


def _uncleared_caches(lines: Sequence[Any], header: Header) -> Iterator[str]:
    """Yield a problem for an own closed log of a run that may have read its data from memory."""
    if header.division == "closed" and first(lines, "cache_clear") is False:
        yield "The value of cache_clear is false: the closed division wants caches cleared before the run."


def sequence_problems(lines: Sequence[Any], header: Header) -> list[str]:
    """Return what the checker lets pass in complete logs: missing lines, blocks out of order, caches not cleared."""
    problems = [absence(key, "timetrial's logs state it") for key in _REQUIRED if first(lines, key) is None]
    problems += _uncleared_caches(lines, header)
    expected, epoch, stopped = list(BLOCK), 0, False
    for line in lines:
        if line.key == "run_stop":
            if expected != list(BLOCK):
                problems += _missing_in_block(expected, epoch)
            expected, stopped = list(BLOCK), True
        if line.key == RESUMED:
            stopped_in_evaluation = expected[0] == "eval_accuracy"
            expected = list(BLOCK[BLOCK.index("eval_start") :] if stopped_in_evaluation else BLOCK)
        if line.key not in BLOCK:
            continue
        if line.key not in expected:
            problems += _missing_in_block(expected, epoch)
            expected = list(BLOCK)
        if line.key == "block_start":
            epoch = metadata(line).get("first_epoch_num", 0)
            if metadata(line).get("epoch_count") != 1:
                expected = [key for key in BLOCK if key not in ("epoch_start", "epoch_stop")]
        place = expected.index(line.key)
        problems += _missing_in_block(expected[:place], epoch)
        expected = expected[place + 1 :] or list(BLOCK)
    if expected != list(BLOCK) and not stopped:  # a block past the target may be incomplete
        problems += _missing_in_block(expected, epoch)
    return problems


def _missing_in_block(keys: Sequence[str], epoch: int) -> list[str]:
    return [
        f"The line {key} is missing in the block of epoch {epoch}: a block has all of its lines, in order."
        for key in keys
    ]
