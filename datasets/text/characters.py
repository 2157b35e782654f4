"""Text by characters: each different character of the training text is a token."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import DataError
from ..formats.compressed import READ_ERRORS, open_compressed
from ..registry.missing import missing_data

_MAX_CHARACTERS = 65_536  # different ones: ids are stored in 16 bits


def read(path: Path) -> str:
    """Return the text of a UTF-8 file (uncompressed, .gz, .xz or .bz2).

    Raises `DataError` for a file that is missing, empty, binary or in another encoding.
    """
    if not path.is_file():
        raise missing_data(path, "name your text in recipe.data")
    try:
        with open_compressed(path, "rb") as file:
            text = file.read().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}): convert the file with iconv.") from error
    except READ_ERRORS as error:
        raise DataError(f"{path} cannot be read ({error}): fetch it again.") from error
    if not text:
        raise DataError(f"{path} is empty: name a file with text in recipe.data.")
    if "\0" in text:
        raise DataError(f"{path} is binary, not text: name a file with text in recipe.data.")
    return text


def learn_vocabulary(text: str) -> str:
    """Return the different characters of the text in ascending order."""
    characters = "".join(sorted(set(text)))
    if len(characters) > _MAX_CHARACTERS:
        raise DataError(f"The text has {len(characters)} different characters, more than {_MAX_CHARACTERS}.")
    return characters


def encode(text: str, vocabulary: str, source: Path) -> NDArray[np.uint16]:
    """Return the position of each character in `vocabulary`; raise `DataError` for one that it lacks, naming it."""
    code_points = _code_points(text)
    known = _code_points(vocabulary)
    ids = np.searchsorted(known, code_points).clip(max=len(known) - 1)
    if len(unknown := np.flatnonzero(known[ids] != code_points)):
        character, line = text[unknown[0]], text.count("\n", 0, int(unknown[0])) + 1
        raise DataError(
            f"{source} line {line} has the character {character!r}, which the training text lacks: "
            "add it to the training text."
        )
    return ids.astype(np.uint16)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
