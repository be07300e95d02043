"""Exclusion: documents to leave out, by their text's digest or by the value of a key column."""

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prep_assets.digest import NO_DIGESTS, SIZE, Digests, contains, digests_of_rows
from prep_assets.errors import RecipeError


@dataclass(frozen=True)
class Exclusion:
    """What is left out. digests: (n, 16) uint8, sorted: of texts, or of the values of a column."""

    column: str | None
    digests: Digests

    @property
    def identity(self) -> str | None:
        """Digest of the list; None where it is empty."""
        return blake2b(self.digests.tobytes(), digest_size=SIZE).hexdigest() if len(self.digests) else None

    def keeps(self, digests: Digests, key: Digests | None) -> npt.NDArray[np.bool_]:
        """Which documents stay. digests: of their texts; key: of the column's values."""
        found = digests if self.column is None else key
        assert found is not None
        return ~contains(self.digests, found)


def load_exclusion(path: Path | None, column: str | None) -> Exclusion:
    """The exclusion in a text file with one digest (32 hex digits) or one key on each line; blank lines do not count.

    Raises RecipeError for a file that cannot be read, or a line that is no digest where no column is named.
    """
    if path is None:
        return Exclusion(column, NO_DIGESTS)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: dataset.exclude cannot be read: {error}") from error
    values = {number: line.rstrip("\r") for number, line in enumerate(lines, 1) if line.strip()}
    if column is not None:
        keys = pa.array(sorted(set(values.values())), pa.large_string())
        digests = digests_of_rows([keys]) if len(keys) else NO_DIGESTS
    else:
        for number, line in values.items():
            if not re.fullmatch(r"[0-9a-f]{32}", line.strip().lower()):
                raise RecipeError(
                    f"{path}, line {number}: {line[:60]!r}; expected a document's digest (32 hex digits),"
                    " or dataset.exclude_column for the column whose values it lists"
                )
        data = b"".join(bytes.fromhex(line.strip()) for line in values.values())
        digests = np.frombuffer(data, np.uint8).reshape(-1, SIZE)
    unique = np.unique(digests, axis=0) if len(digests) else NO_DIGESTS
    return Exclusion(column, unique)
