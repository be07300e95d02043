"""Ragged arrays: ids of several documents, one after another, with their lengths."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Part(NamedTuple):
    """Tokens of some documents of a batch. places: (n,) their rows; lengths: (n,); ids: (lengths.sum(),)."""

    places: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    ids: npt.NDArray[Any]


def gather(ids: npt.NDArray[Any], begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The ids of documents that begin at these places, one after another."""
    if not len(begins):
        return ids[:0]
    if np.array_equal(begins[1:], begins[:-1] + lengths[:-1]):  # neighbours: a view, as where little changed
        return ids[begins[0] : begins[-1] + lengths[-1]]
    ends = np.cumsum(lengths)
    gathered: npt.NDArray[Any] = ids[np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)]
    return gathered


def merge(parts: Sequence[Part], count: int, dtype: np.dtype[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Lengths and ids of a batch of documents whose tokens lie in parts; count: of the documents."""
    lengths = np.zeros(count, np.int64)
    for part in parts:
        lengths[part.places] = part.lengths
    ids = np.empty(int(lengths.sum()), dtype)
    owner = np.zeros(count, np.int64)
    for at, part in enumerate(parts):
        owner[part.places] = at
    owner_of_token = np.repeat(owner, lengths) if len(parts) > 1 else None
    for at, part in enumerate(parts):
        order = np.argsort(part.places, kind="stable")
        values = part.ids
        if not np.array_equal(order, np.arange(len(order))):
            begins = np.cumsum(part.lengths) - part.lengths
            values = gather(part.ids, begins[order], part.lengths[order])
        if owner_of_token is None:
            ids[:] = values
        else:
            ids[owner_of_token == at] = values
    return lengths, ids
