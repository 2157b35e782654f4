"""GPT's data: windows of a text that is one long sequence of tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import MISSING
from torch import Tensor

from ...datasets.formats import token_shards
from ...datasets.synthetic import language
from ...datasets.synthetic.spec_digest import path_with_digest
from ...datasets.text import characters
from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import ConfigurationError
from ...runner.core.progress import ProgressCallback
from ...runner.training.seeds import Seeds
from ...runner.training.workload import Batch, BatchSharding, Data
from ..common.manifest import manifest_path, read_manifest, write_manifest
from .token_windows import TokenWindows

_VOCAB_MULTIPLE = 64  # embeddings are padded to a multiple of 64 rows for the matrix units: 50,257 to 50,304
_VALIDATION_SHARE = 10  # without validation files, the last tenth of the training text is for validation
_SYNTHETIC_TOKENS = 1 << 24
_MAX_VOCABULARY = 1 << 16


class GPTData(Data):
    """Windows of `context` tokens that follow each other without overlap; each pass over the text shifts them anew.

    A training sample is a window of `context + 1` tokens: each token but the last predicts the next one. Batches are
    always full: the windows that are left over at the end of an epoch are dropped.
    """

    dataset_keys = ("train", "validation")

    @dataclass
    class Settings:
        """The text and its windows."""

        train: list[str] = MISSING
        """Training files: text, or token shards (.bin), whose names may have wildcards."""
        validation: list[str] = field(default_factory=list)
        """Validation files of the same kind; empty: the last tenth of the training text."""
        context: int = MISSING
        """Tokens of a window."""
        vocabulary_size: int | None = None
        """Tokens of the vocabulary of the shards; null for text, whose characters are the tokens."""
        epoch_windows: int | None = None
        """Windows of an epoch; null: all of the training text."""
        eval_windows: int | None = None
        """Windows from the beginning of the validation text that are evaluated; null: all."""
        cache_dir: str = MISSING
        """Folder of the encoded text and of the manifest."""
        generate: language.TranslationSpec | None = None
        """Grammar of a synthetic language, generated if the files do not exist; null: real files."""
        eval_batch_size: int = 64
        """Windows of an evaluation batch of one rank."""

        def __post_init__(self) -> None:
            sizes = (self.context, self.eval_batch_size, self.epoch_windows, self.eval_windows)
            if not self.train or any(size is not None and size < 1 for size in sizes):
                raise ValueError(
                    "train must name a file, and context, eval_batch_size, epoch_windows and eval_windows must be 1 or "
                    "more."
                )
            are_shards = {name.endswith(token_shards.SUFFIX) for name in [*self.train, *self.validation]}
            if len(are_shards) > 1:
                raise ValueError("train and validation must be text or token shards (.bin), not both.")
            if are_shards == {True} and not (self.validation and self.vocabulary_size):
                raise ValueError("Token shards need validation shards and vocabulary_size.")
            if are_shards == {False} and self.vocabulary_size is not None:
                raise ValueError("vocabulary_size is for token shards: text has as many tokens as characters.")
            if not 1 <= (self.vocabulary_size or 1) <= _MAX_VOCABULARY:
                raise ValueError(f"vocabulary_size must be from 1 to {_MAX_VOCABULARY}, as tokens have 16 bits.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self._settings, self._sharding, self._device, self._seeds = settings, sharding, device, seeds
        self.global_batch_size, self.context = global_batch_size, settings.context
        sizes = self._read_sizes()
        self.vocab_size = sizes["vocabulary_size"]
        self.padded_vocab_size = -(-self.vocab_size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
        # Every shard loses up to a window to the shift, and the last target needs a token more than the windows.
        self._windows = [max(0, tokens - self.context) // self.context for tokens in sizes["train_tokens"]]
        eval_windows = sum(self._eval_windows(tokens) for tokens in sizes["validation_tokens"])
        self.eval_size = min(eval_windows, settings.eval_windows or eval_windows)
        if not self.eval_size:
            raise ConfigurationError(
                f"The validation text is shorter than a window of {self.context} tokens and the token after it: "
                "lower recipe.data.context, or use more text."
            )
        windows = sum(self._windows)
        epoch_windows = settings.epoch_windows or windows
        self.steps_per_epoch = epoch_windows // global_batch_size
        self.train_size = self.steps_per_epoch * global_batch_size
        if global_batch_size > min(windows, epoch_windows):
            remedy = "lower recipe.data.context" if global_batch_size > windows else "raise recipe.data.epoch_windows"
            raise ConfigurationError(
                f"An epoch has {min(windows, epoch_windows)} windows of {self.context} tokens, fewer than a batch of "
                f"{global_batch_size}: lower recipe.global_batch_size, or {remedy}."
            )

    @classmethod
    def prepare_data(cls, settings: Settings, progress: ProgressCallback) -> None:
        """Encode text, and count the tokens of shards."""
        if settings.train[0].endswith(token_shards.SUFFIX):
            sizes: dict[str, Any] = {"vocabulary_size": settings.vocabulary_size}
        else:
            sizes = {"vocabulary_size": _encode_text(settings)}
        for split, paths in zip(("train", "validation"), _shards(settings), strict=True):
            sizes[f"{split}_shards"] = [str(path) for path in paths]
            sizes[f"{split}_tokens"] = [token_shards.count(path) for path in paths]
        write_manifest(_manifest_path(settings), sizes)

    @classmethod
    def prepared_content(cls, settings: Settings) -> Iterator[Path | bytes]:
        """Yield the token shards of training and validation."""
        for paths in _shards(settings):
            yield from paths

    def _read_sizes(self) -> dict[str, Any]:
        return read_manifest(_manifest_path(self._settings))

    def open(self) -> None:
        """Open the encoded text; a training text of moderate size is copied to the device."""
        manifest = self._read_sizes()
        self._train, self._validation = (
            TokenWindows([token_shards.read(Path(name)) for name in manifest[key]], self.vocab_size, self._device)
            for key in ("train_shards", "validation_shards")
        )

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Yield this rank's micro-batches of every global batch of the epoch."""
        for step in np.split(self._epoch_starts(epoch), self.steps_per_epoch):
            yield [
                self._train_batch(self._train.windows(step[part], self.context + 1), len(step))
                for part in self._sharding.micro_batches(len(step))
            ]

    def _epoch_starts(self, epoch: int) -> NDArray[np.int64]:
        """Return the first token of each window of the epoch; an epoch continues where the last one ended."""
        if self._settings.epoch_windows is None:  # each epoch is one pass
            return self._pass_starts(epoch)[: self.train_size]
        start, total, found = (epoch - 1) * self.train_size, sum(self._windows), []
        remaining = self.train_size
        while remaining:
            number, offset = divmod(start, total)
            found.append(self._pass_starts(number + 1)[offset : offset + remaining])
            start, remaining = start + len(found[-1]), remaining - len(found[-1])
        return np.concatenate(found)

    def _pass_starts(self, number: int) -> NDArray[np.int64]:
        """Return the first token of each window of the 1-based pass over the text, shifted and shuffled."""
        generator = np.random.default_rng(self._seeds.derive("data_order", number))
        starts, first = [], 0
        for windows, tokens in zip(self._windows, self._train.sizes, strict=True):
            starts.append(first + generator.integers(self.context) + np.arange(windows) * self.context)
            first += tokens
        return generator.permutation(np.concatenate(starts))

    def eval_batches(self) -> Iterable[Batch]:
        """Yield this rank's windows of the validation text, each once; the rest of a window at its end is dropped."""
        starts, first = [], 0
        for tokens in self._validation.sizes:
            starts.append(first + np.arange(self._eval_windows(tokens)) * self.context)
            first += tokens
        all_starts = np.concatenate(starts)
        for span in self._eval_spans():
            yield self._eval_batch(self._validation.windows(all_starts[span], self.context + 1))

    def _eval_spans(self) -> list[slice]:
        """Return this rank's evaluation batches as slices of the validation windows."""
        return self._sharding.eval_spans(self.eval_size, self._settings.eval_batch_size)

    def _eval_windows(self, tokens: int) -> int:
        return max(0, tokens - 1) // self.context

    def warm_up_steps(self) -> Iterator[Sequence[Batch]]:
        """Yield the micro-batches of one step with random tokens."""
        size = self.global_batch_size
        yield [
            self._train_batch(self._random_windows(part.stop - part.start), size)
            for part in self._sharding.micro_batches(size)
        ]

    def warm_up_eval_batches(self) -> Iterator[Batch]:
        """Yield random tokens in the shape of the first evaluation batch, and of the last one if that is smaller."""
        sizes = dict.fromkeys(span.stop - span.start for span in self._eval_spans())
        for size in sizes:
            yield replace(self._eval_batch(self._random_windows(size)), is_partial=size < max(sizes))

    def mlperf_params(self) -> dict[str, Any]:
        """Return the length of a window and the size of the vocabulary."""
        return {"max_sequence_length": self.context, "timetrial_vocabulary": self.vocab_size}

    def _random_windows(self, count: int) -> Tensor:
        length = self.context + 1
        ids = np.random.default_rng(0).integers(self.vocab_size, size=count * length, dtype=np.uint16)
        return TokenWindows([ids], self.vocab_size, self._device).windows(np.arange(0, ids.size, length), length)

    def _train_batch(self, windows: Tensor, global_samples: int) -> Batch:
        """Return a batch whose weight is the predicted tokens."""
        tokens = global_samples * self.context
        return Batch(windows, len(windows) * self.context, global_samples, tokens, tokens)

    def _eval_batch(self, windows: Tensor) -> Batch:
        return Batch(windows, len(windows), self.eval_size)


class SyntheticGPTData(GPTData):
    """data=synthetic: random tokens; nothing is read or learned."""

    @classmethod
    def prepare_data(cls, settings: GPTData.Settings, progress: ProgressCallback) -> None:
        """Do nothing: there is nothing to prepare."""

    def open(self) -> None:
        """Draw the tokens."""
        generator = np.random.default_rng(self._seeds.data_order)
        sizes = self._read_sizes()
        self._train, self._validation = (
            TokenWindows(
                [generator.integers(self.vocab_size, size=size, dtype=np.uint16) for size in sizes[key]],
                self.vocab_size,
                self._device,
            )
            for key in ("train_tokens", "validation_tokens")
        )

    def _read_sizes(self) -> dict[str, Any]:
        tokens = max(_SYNTHETIC_TOKENS, 2 * self.global_batch_size * self.context + self.context)
        validation = self._settings.eval_batch_size * self.context + 1
        size = self._settings.vocabulary_size or 65
        return {"vocabulary_size": size, "train_tokens": [tokens], "validation_tokens": [validation]}


def _encode_text(settings: GPTData.Settings) -> int:
    """Write the text as a shard for each split; return the size of the vocabulary, the characters for training."""
    paths = _text_paths(settings)
    if settings.generate is not None and not paths[0][0].parent.exists():
        language.write_parallel_text(paths[0][0].parent, settings.generate)
    texts = [[characters.read(path) for path in part] for part in paths]
    vocabulary = characters.learn_vocabulary("".join(texts[0]))
    encoded = [
        np.concatenate([characters.encode(text, vocabulary, path) for text, path in zip(part, files, strict=True)])
        for part, files in zip(texts, paths, strict=True)
        if files
    ]
    if not paths[1]:
        encoded = np.split(encoded[0], [len(encoded[0]) - len(encoded[0]) // _VALIDATION_SHARE])
    shards = [shard for part in _shards(settings) for shard in part]
    for shard, ids in zip(shards, encoded, strict=True):
        with atomic_write(shard) as temporary:
            token_shards.write(temporary, ids)
    return len(vocabulary)


def _shards(settings: GPTData.Settings) -> tuple[list[Path], list[Path]]:
    """Return the token shards of training and validation: the given ones, or those of the text in the cache."""
    if settings.train[0].endswith(token_shards.SUFFIX):
        return _expand(settings.train), _expand(settings.validation)
    manifest = _manifest_path(settings)
    train, validation = (
        manifest.with_name(manifest.name.replace(".manifest.json", f".{split}.bin")) for split in ("train", "val")
    )
    return [train], [validation]


def _expand(names: Sequence[str]) -> list[Path]:
    """Return the files that match the names, in their order; a name that no file matches as it is."""
    paths = [Path(name) for name in names]
    return [found for path in paths for found in sorted(path.parent.glob(path.name)) or [path]]


def _text_paths(settings: GPTData.Settings) -> list[list[Path]]:
    """Return the files of training and validation; with `generate`, those of the generated language."""
    paths = [[Path(name) for name in names] for names in (settings.train, settings.validation)]
    if settings.generate is None:
        return paths
    folder = path_with_digest(paths[0][0].parent, settings.generate)
    return [[folder / path.name for path in part] for part in paths]


def _manifest_path(settings: GPTData.Settings) -> Path:
    train, validation = _text_paths(settings)
    return manifest_path(settings.cache_dir, f"gpt, {len(train)} for training", *train, *validation)
