"""Worker processes that make the batches of a plan."""

import atexit
import errno
import gc
import mmap
import os
import pickle
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ....runner.core.errors import ConfigurationError, DataError
from ....runner.core.signals import signal_when_parent_ends
from .batches import EncodedBatch

MAX_WORKERS = 16  # per rank: more processes slow each other down
_READ_AHEAD = 2  # batches that each worker makes before they are asked for
_BUFFERS_PER_WORKER = _READ_AHEAD + 1  # one more is in use
_BUFFER_BYTES = 1 << 28  # of address space: a buffer takes as much memory as its largest batch
_ALIGNMENT = 64  # bytes, of arrays in shared memory
# macOS's libraries do not survive a fork. On Linux, the default of Python 3.14 is a server process that starts workers:
# they would end with it, not with this one.
_FORKS = sys.platform == "linux"
_NO_SHARED_MEMORY = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOSYS)

Key = tuple[int, Sequence[int]]  # epoch and image indices of a batch
MakeBatch = Callable[[int, Sequence[int]], Any]  # of an epoch and image indices


class BatchWorkers:
    """Calls a function for every key of a plan in `workers` processes, or in this one for 0, and keeps the order.

    `open` tells them the function, which touches the data. On Linux the processes start before, in the constructor and
    the caller's thread; elsewhere then. With `pin_memory`, batches need a method of that name. With `reuse_memory`,
    they are of type `EncodedBatch`, and their `data` is valid until the next batch is asked for.
    """

    def __init__(self, workers: int, *, pin_memory: bool = False, reuse_memory: bool = False) -> None:
        self._buffers = _open_buffers(_BUFFERS_PER_WORKER * workers) if reuse_memory else []
        self._sampler = _KeySampler()
        self._batches = _Batches(self._buffers)
        self._loader: DataLoader[Any] = DataLoader(
            self._batches,
            batch_sampler=self._sampler,  # type: ignore[arg-type] # a key is an epoch with a list of indices
            num_workers=workers,
            multiprocessing_context="fork" if workers and _FORKS else None,
            collate_fn=_identity,
            worker_init_fn=_init_worker,
            persistent_workers=workers > 0,
            prefetch_factor=_READ_AHEAD if workers else None,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # not the global one, whose draws would depend on when a run was resumed
        )
        # Keeps the loader alive until its workers are told to end: in a garbage cycle its queues could go first.
        end = weakref.finalize(self, _end_workers, self._loader)
        # multiprocessing's own exit handler runs before that of `finalize` and sends signals that workers ignore.
        end.atexit = False
        atexit.register(end)
        if workers and _FORKS:
            self._batches.handover = _Handover()
            self._start()

    def _start(self) -> None:
        # Objects that a child inherited must not be collected there: those of frameworks wait for threads that only the
        # parent has. A rank has set objects aside before, which stay there.
        was_frozen = gc.get_freeze_count() > 0
        gc.freeze()
        try:
            iter(self._loader)
        except OSError as error:
            if error.errno not in _NO_SHARED_MEMORY:
                raise
            raise ConfigurationError(
                f"Processes that load data share memory in /dev/shm, which cannot be used ({error.strerror}): "
                "enlarge it (docker run --shm-size=8g), or set recipe.data.workers=0."
            ) from error
        finally:
            if not was_frozen:
                gc.unfreeze()

    def open(self, make_batch: MakeBatch) -> None:
        """Let `make_batch`, which must be picklable, make the batches; call it once, before `run`."""
        if self._batches.handover is not None:
            self._batches.handover.send(make_batch)
            return
        self._batches.make_batch = make_batch
        if self._loader.num_workers:
            self._start()

    def run(self, plan: Iterable[Key]) -> Iterator[Any]:
        """Yield the batches of `plan`, which may be endless; raise the `DataError` that `make_batch` raised.

        Batches that an earlier call has not yielded are dropped.
        """
        self._sampler.plan = plan
        return map(self._receive, iter(self._loader))

    def _receive(self, sent: Any) -> Any:
        if isinstance(sent, str):
            raise DataError(sent)
        if isinstance(sent, _Buffered):
            return replace(sent.batch, data=self._buffers[sent.buffer][: int(sent.batch.lengths.sum())])
        return sent


def worker_count(requested: int | None, ranks: int) -> int:
    """Return `requested`, or if that is None one worker for each core of a rank, at most `MAX_WORKERS`."""
    if requested is not None:
        return requested
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, cores // ranks))


class _KeySampler:
    """A batch sampler whose keys can be replaced, as `DistributedSampler.set_epoch` replaces its epoch."""

    def __init__(self) -> None:
        self.plan: Iterable[Key] = ()

    def __iter__(self) -> Iterator[Key]:
        return iter(self.plan)


class _Batches(Dataset[Any]):
    """Makes batches in a worker, which writes the JPEGs of each to the next of its own buffers.

    At most `_READ_AHEAD` batches of a worker are made or being made that the rank has not asked for, so that the one
    that was in the buffer before is no longer in use.
    """

    make_batch: MakeBatch | None = None
    handover: "_Handover | None" = None

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._buffers = buffers
        self._written = 0  # batches, by this worker

    def __getitems__(self, key: Key) -> Any:
        """Return a batch, or a message: the DataLoader would wrap an exception's message in a traceback."""
        if self.make_batch is None:
            assert self.handover is not None
            self.make_batch = self.handover.receive()
        try:
            batch = self.make_batch(*key)
        except DataError as error:
            return str(error)
        worker = get_worker_info()
        if worker is None or not self._buffers or len(batch.data) > _BUFFER_BYTES:
            return batch
        buffer = worker.id * _BUFFERS_PER_WORKER + self._written % _BUFFERS_PER_WORKER
        self._written += 1
        self._buffers[buffer][: len(batch.data)] = batch.data
        return _Buffered(replace(batch, data=batch.data[:0]), buffer)


class _Handover:
    """A file without a name through which an object reaches processes that were forked before it existed.

    They share the memory of its arrays, which may be as large as the annotations of a dataset.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("make_batch")
        else:  # a Python that was built for old systems
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)

    def send(self, value: Any) -> None:
        """Write the object; it is pickled, its arrays as they lie in memory."""
        arrays: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        parts = [memoryview(pickled), *(array.raw() for array in arrays)]
        with open(self._file, "wb", closefd=False) as file:
            pickle.dump([part.nbytes for part in parts], file)
            for part in parts:
                file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
                file.write(part)

    def receive(self) -> Any:
        """Return the object; what is written to its arrays stays in this process."""
        memory = mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY)
        sizes, parts = pickle.load(memory), []
        place, whole = memory.tell(), memoryview(memory)
        for size in sizes:
            place += -place % _ALIGNMENT
            parts.append(whole[place : place + size])
            place += size
        return pickle.loads(parts[0], buffers=parts[1:])


@dataclass
class _Buffered:
    """A batch whose JPEGs are in a buffer."""

    batch: EncodedBatch
    buffer: int


def _open_buffers(count: int) -> list[Tensor]:
    """Return memory that processes forked later share; none if the system does not reserve the address space.

    The rank maps it once, while a tensor in shared memory is a new file for each batch.
    """
    try:
        return [torch.frombuffer(mmap.mmap(-1, _BUFFER_BYTES), dtype=torch.uint8) for _ in range(count)]
    except OSError:
        return []


def _identity(batch: Any) -> Any:
    return batch


def _init_worker(worker: int) -> None:
    """Ignore stop signals, which the rank handles: a worker ends when the rank tells it to, or is gone."""
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal_when_parent_ends(signal.SIGKILL)  # also of a rank that is killed


def _end_workers(loader: DataLoader[Any]) -> None:
    iterator: Any = loader._iterator  # whose attributes here are private, and those of multiprocess loaders alone
    if iterator is None:
        return
    try:
        threading.Thread(target=int).start()
    except RuntimeError:  # to tell workers takes a thread, and Python 3.12 starts none at its exit
        signal_handling: Any = torch.utils.data._utils.signal_handling
        signal_handling._remove_worker_pids(id(iterator))  # else PyTorch reports that they were killed
        for worker in iterator._workers:
            worker.kill()
    else:
        iterator._shutdown_workers()
