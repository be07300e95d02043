"""What a contender wrote, read back: whether all of them made the same tokens of the same documents."""

import csv
import gzip
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.reader import read_pair

Documents = list[npt.NDArray[np.integer]]  # the ids of each


def read_pairs(output: Path) -> Iterator[Documents]:
    """Of every `.bin`/`.idx` pair: of ours those of the published version, in natural order."""
    folder = output / "published" / "latest" if (output / "published").exists() else output
    prefixes = [path.with_suffix("") for path in folder.glob("*.idx")]
    for prefix in sorted(prefixes, key=lambda path: (len(path.name), path.name)):
        yield read_pair(prefix)


def read_datatrove(output: Path) -> Iterator[Documents]:
    """Of every `.ds`, by the ends of documents that its index holds."""
    for path in sorted(output.glob("*.ds")):
        ends = np.fromfile(f"{path}.index", "<u8").astype(np.int64)
        dtype = np.dtype(f"<u{path.stat().st_size // int(ends[-1])}")
        yield np.split(np.fromfile(path, dtype), ends[:-1])


def read_dolma(output: Path) -> Iterator[Documents]:
    """Of every array, by the begins and ends in the table beside it."""
    for path in sorted(output.rglob("*.npy")):
        ids = np.fromfile(path, "<u4")
        with gzip.open(path.with_suffix(".csv.gz"), "rt") as stream:
            yield [ids[int(row[0]) : int(row[1])] for row in csv.reader(stream)]


def summarize(files: Iterable[Documents], end: int) -> dict[str, int | str | bool]:
    """documents: a digest that the order does not enter; ordered: one that it does. Both without the end tokens."""
    count = total = unordered = 0
    with_end, ordered = True, hashlib.blake2b(digest_size=16)
    for documents in files:
        ended = all(len(ids) and ids[-1] == end for ids in documents)
        with_end = with_end and ended
        for ids in documents:
            digest = hashlib.blake2b(ids[: len(ids) - ended].astype("<u4").tobytes(), digest_size=16).digest()
            unordered = (unordered + int.from_bytes(digest)) % 2**128
            ordered.update(digest)
            total += len(ids) - ended
        count += len(documents)
    return {
        "documents": count,
        "tokens": total,
        "with_end": with_end,
        "content": f"{unordered:032x}",
        "ordered": ordered.hexdigest(),
    }
