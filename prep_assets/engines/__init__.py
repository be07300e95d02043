"""Engines: what turns texts into token ids. The reference defines the right ids; faster ones prove themselves on it."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Encoded(NamedTuple):
    """Ids of a batch of texts. lengths: (num_texts,) int64, in tokens; ids: (lengths.sum(),) uint32."""

    lengths: npt.NDArray[np.int64]
    ids: npt.NDArray[Any]


class Engine(Protocol):
    """One tokenizer file, loaded by one library."""

    name: str  # and version: it stands in receipts

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """The ids of each text for itself, without the tokenizer's own BOS, EOS, truncation and padding.

        Several threads may call at once.
        """
        ...


def is_same(one: Encoded, other: Encoded) -> bool:
    """Whether both say the same of the same texts."""
    return np.array_equal(one.lengths, other.lengths) and np.array_equal(one.ids, other.ids)
