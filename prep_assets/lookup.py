"""Lookup: where a digest lies in a partition. A file beside the partition, searched through the memory map.

Format: three arrays of n little-endian uint64, one after another: the digests' first halves, sorted; their second
halves; the positions of their documents. Of equal digests, the first document's position comes first.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from prep_assets.digest import NO_DIGESTS, Digests
from prep_assets.errors import DamagedFileError
from prep_assets.payload import create

FILE = "lookup.bin"
_U64 = np.dtype("<u8")


class Lookup:
    """Finds documents by digest. Memory: none but the map where it is read from a file."""

    def __init__(self, high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64], position: npt.NDArray[np.uint64]):
        self._high, self._low, self._position = high, low, position

    @classmethod
    def of(cls, digests: Digests) -> "Lookup":
        """digests: (n, 16) uint8. Memory: 24 bytes a document."""
        high, low = _halves(digests)
        order = np.argsort(high, kind="stable")
        return cls(high[order], low[order], order.view(np.uint64))

    def write(self, folder: Path) -> None:
        with create(folder / FILE) as stream:
            for column in (self._high, self._low, self._position):
                stream.write(column.astype(_U64, copy=False).data)

    @classmethod
    def read(cls, folder: Path, documents: int) -> "Lookup":
        """documents: how many there are. Raises DamagedFileError for a file that is missing or of another size."""
        path = folder / FILE
        found = f"{path.stat().st_size} bytes" if path.exists() else "missing"
        if found != f"{24 * documents} bytes":
            raise DamagedFileError(f"{path}: {found}; expected {24 * documents} bytes")
        if not documents:
            return cls.of(NO_DIGESTS)
        high, low, position = np.memmap(path, _U64, "r").reshape(3, documents)
        return cls(high, low, position)

    def find(self, digests: Digests) -> npt.NDArray[np.int64]:
        """Position of a document of each digest, -1 where there is none.

        Of digests that share a first half only the first is found: reuse is never needed, only cheap. Damage may give
        a wrong position, none outside: whoever takes what lies there compares its digest.
        """
        high, low = _halves(digests)
        if not len(self._high):
            return np.full(len(high), -1, np.int64)
        at = np.minimum(np.searchsorted(self._high, high), len(self._high) - 1)
        position = self._position[at]
        is_found = (self._high[at] == high) & (self._low[at] == low) & (position < len(self._high))
        return np.where(is_found, position.astype(np.int64), -1)


def _halves(digests: Digests) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Views."""
    halves = np.ascontiguousarray(digests).view(_U64).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]
