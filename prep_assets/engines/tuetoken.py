"""tuetoken: takes tokenizers with a Digits pre-tokenizer, such as SmolLM's, which gigatoken does not; added tokens in
texts are plain text to it."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prep_assets.engines import Encoded


class TuetokenEngine:
    """Encodes on threads of its own, as many as it is told."""

    def __init__(self, path: Path, threads: int) -> None:
        """path: a tokenizer.json. Raises ImportError where the library is not installed."""
        import tuetoken

        self.name = f"tuetoken {version('tuetoken')}"
        self._tokenizer, self._threads = tuetoken.Tokenizer(str(path)), threads

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """As Engine.encode, of texts without an added token's text. A string exists for each text meanwhile."""
        encoded = self._tokenizer.encode_ordinary_to_buffer(texts.to_pylist(), self._threads)
        offsets: npt.NDArray[np.int64] = np.asarray(encoded["offsets"], np.int64)
        return Encoded(offsets[1:] - offsets[:-1], np.asarray(encoded["data"]))
