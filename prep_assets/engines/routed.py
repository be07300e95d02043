"""Routed engine: a fast engine, but for the texts that it is known to treat differently: those go to the reference."""

import re
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prep_assets.engines import Encoded, Engine
from prep_assets.ragged import Part, merge

# RE2's class of the combining marks that Unicode added after version 9, and of what composes with them since version
# 10: where a text holds one, `tokenizers`' older tables order or compose marks otherwise than the fast libraries do.
# Found by comparing NFC over every pair of marks (tests/test_engines.py tries them); 640 MB/s.
YOUNG_MARKS = (
    r"[\x{307}\x{7fd}\x{897}-\x{89f}\x{8ca}-\x{8d3}\x{9fe}\x{c3c}\x{d3b}-\x{d3c}\x{eba}\x{1715}\x{1abf}-\x{1add}"
    r"\x{1ae0}-\x{1aeb}\x{1df6}-\x{1dfa}\x{a82c}\x{105d2}\x{105da}\x{10d24}-\x{10d27}\x{10d69}-\x{10d6d}"
    r"\x{10eab}-\x{10eac}\x{10efa}-\x{10efb}\x{10efd}-\x{10eff}\x{10f46}-\x{10f50}\x{10f82}-\x{10f85}\x{11070}"
    r"\x{1133b}\x{11382}\x{11384}\x{1138b}\x{11390}\x{113b8}\x{113bb}\x{113c2}\x{113c9}\x{113ce}-\x{113d0}\x{1145e}"
    r"\x{11839}-\x{1183a}\x{11930}\x{11935}\x{1193d}-\x{1193e}\x{11943}\x{119e0}\x{11a34}\x{11a47}\x{11a99}\x{11d42}"
    r"\x{11d44}-\x{11d45}\x{11d97}\x{11f41}-\x{11f42}\x{1611e}-\x{16120}\x{16129}\x{1612f}\x{16d63}\x{16d67}"
    r"\x{16ff0}-\x{16ff1}\x{1e08f}\x{1e130}-\x{1e136}\x{1e2ae}\x{1e2ec}-\x{1e2ef}\x{1e4ec}-\x{1e4ef}"
    r"\x{1e5ee}-\x{1e5ef}\x{1e6e3}\x{1e6e6}\x{1e6ee}-\x{1e6ef}\x{1e6f5}]"
)


def literals(texts: Collection[str]) -> str:
    """RE2's pattern of any of these texts."""
    return "|".join(re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text) for text in texts)


class RoutedEngine:
    """Hands the texts that a pattern is found in to the reference, all others to the fast engine."""

    def __init__(self, fast: Engine, reference: Engine, pattern: str) -> None:
        """pattern: RE2's."""
        self.name = fast.name
        self._fast, self._reference, self._pattern = fast, reference, pattern

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """As Engine.encode."""
        is_other = pc.match_substring_regex(texts, self._pattern).to_numpy(zero_copy_only=False)
        if not is_other.any():
            return self._fast.encode(texts)
        parts = []
        for engine, places in ((self._fast, np.flatnonzero(~is_other)), (self._reference, np.flatnonzero(is_other))):
            parts.append(Part(places, *engine.encode(texts.take(pa.array(places)))))
        return Encoded(*merge(parts, len(texts), np.dtype(np.uint32)))
