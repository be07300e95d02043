"""Sample: documents of each batch, chosen by digest, whose ids are compared with the reference's."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prep_assets.digest import Digests
from prep_assets.engines import Encoded, Engine

SHARE = 400  # one byte of so many: at 34 times the reference's speed that is a twelfth of the time
SHORT = 16 << 10  # bytes: of a batch without anything shorter, no document is compared


def first_difference(reference: Engine, digests: Digests, texts: pa.LargeStringArray, encoded: Encoded) -> int | None:
    """The place of a sampled text for which an engine gave other ids than the reference; None where there is none."""
    places = _sample(digests, pc.binary_length(texts).to_numpy())
    expected = reference.encode(texts.take(pa.array(places)))
    ends, expected_ends = np.cumsum(encoded.lengths), np.cumsum(expected.lengths)
    place: int
    for place, end, length in zip(places.tolist(), expected_ends, expected.lengths, strict=True):
        ids = encoded.ids[ends[place] - encoded.lengths[place] : ends[place]]
        if not np.array_equal(ids, expected.ids[end - length : end]):
            return place
    return None


def _sample(digests: Digests, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places of documents in the order of their digests, as many as are SHARE of the bytes, but one at least."""
    order = np.argsort(np.ascontiguousarray(digests[:, 8:]).view(np.uint64).ravel())
    order = order[sizes[order] <= SHORT]
    return np.sort(order[: 1 + int(np.searchsorted(np.cumsum(sizes[order]), sizes.sum() // SHARE))])
