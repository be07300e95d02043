"""gigatoken: from Arrow buffers to flat ids, without an object for a document or a token."""

import os
from importlib.metadata import version

import numpy as np
import pyarrow as pa

from prep_assets.engines import Encoded


class GigatokenEngine:
    """Encodes on the library's own threads; a small batch, and all in a child forked after that, on the calling one."""

    _process: int | None = None  # that has the library's threads: its forks have not, and would wait for them

    def __init__(self, tokenizer_json: str) -> None:
        """Raises ImportError where the library is not installed, ValueError for a tokenizer that it does not take."""
        import gigatoken

        self.name = f"gigatoken {version('gigatoken')}"
        self._tokenizer = gigatoken.Tokenizer.from_json(tokenizer_json)
        import awkward  # half a second, needed only now

        self._from_arrow = awkward.from_arrow

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """As Engine.encode; the ids are a view of the library's own buffer."""
        if GigatokenEngine._process is None:
            GigatokenEngine._process = os.getpid()
        is_parallel = GigatokenEngine._process == os.getpid()
        layout = self._tokenizer.encode_batch(self._from_arrow(texts), parallel=is_parallel).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        return Encoded(np.diff(offsets), np.asarray(layout.content.data)[offsets[0] : offsets[-1]])
