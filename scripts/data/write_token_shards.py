#!/usr/bin/env python
"""Write lines of text as token shards for `workload=gpt scale=reference`, with sub-words learned from them.

    python -P scripts/data/write_token_shards.py [--size N] [--validation SHARE] OUT TEXT...

Writes OUT/train.bin, OUT/validation.bin from the last SHARE of the lines, and OUT/vocabulary.txt, which is learned from
the others. Texts may be compressed. Prints the numbers of tokens as one JSON line.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np

from timetrial.datasets.formats import token_shards
from timetrial.datasets.formats.compressed import open_compressed
from timetrial.datasets.text.subwords import EOS, Subwords, split

_MAX_SUBWORDS = 1 << 16


def main() -> None:
    """Write the shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16384, help="sub-words of the vocabulary")
    parser.add_argument("--validation", type=float, default=0.05, help="share of the lines, the last ones")
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    arguments = parser.parse_args()
    lines = []
    for path in arguments.texts:
        with open_compressed(path, "rt", encoding="utf-8") as file:
            lines += file.read().splitlines()
    first = len(lines) - int(len(lines) * arguments.validation)
    if not 0 < first < len(lines):
        parser.error(f"--validation {arguments.validation} of {len(lines)} lines leaves one of the two parts empty.")
    vocabulary = Subwords.learn(Counter(token for line in lines[:first] for token in split(line)), arguments.size)
    if len(vocabulary) > _MAX_SUBWORDS:
        parser.error(f"The vocabulary has {len(vocabulary)} sub-words, but shards hold 16 bits: lower --size.")
    ids = [np.asarray([*vocabulary.encode(line), EOS]) for line in lines]
    arguments.out.mkdir(parents=True, exist_ok=True)
    vocabulary.write(arguments.out / "vocabulary.txt")
    sizes = {"vocabulary": len(vocabulary.tokens)}
    for name, part in (("train", ids[:first]), ("validation", ids[first:])):
        tokens = np.concatenate(part)
        token_shards.write(arguments.out / f"{name}.bin", tokens)
        sizes[name] = len(tokens)
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
