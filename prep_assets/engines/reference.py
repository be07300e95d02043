"""The reference engine: Hugging Face's `tokenizers`. Its ids are the right ones by definition."""

import os

import numpy as np
import pyarrow as pa
import tokenizers

from prep_assets.engines import Encoded


class ReferenceEngine:
    """Encodes with `Tokenizer.encode_batch_fast`, on the library's own threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, threads: int) -> None:
        """threads: at most so many; the library reads the number when it first encodes in this process."""
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
        self._tokenizer = tokenizer
        self.name = f"tokenizers {tokenizers.__version__}"

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """As Engine.encode."""
        encodings = self._tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        ids = np.empty(int(lengths.sum()), np.uint32)
        end = 0
        for encoding, length in zip(encodings, lengths.tolist(), strict=True):
            ids[end : end + length] = encoding.ids
            end += length
        return Encoded(lengths, ids)
