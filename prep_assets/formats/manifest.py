"""The files of a published version that say what it holds, for us and for each trainer.

`fast_llm_dataset.json`: Fast-LLM's first prepare command, commit 2905d38c.
`fast_llm_config.yaml`: Fast-LLM, fast_llm/data/dataset/gpt/config.py, `type: file`; paths relative to the file.
`megatron_data_args.txt`: Megatron-LM, `--data-args-path`: weight and prefix in turn, split at white space.
`version.json`: ours; what `verify` compares with.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from prep_assets.errors import DamagedFileError
from prep_assets.receipt import Piece, fingerprint


class Version(BaseModel, frozen=True, extra="forbid"):
    """A published dataset. Its id is a digest of all else in here: the same on every machine."""

    id: str
    documents: int
    tokens: int
    dtype: str  # as numpy writes it
    keep_columns: tuple[str, ...]
    pieces: tuple[Piece, ...]


def version_of(pieces: Sequence[Piece], dtype: str, keep_columns: Sequence[str]) -> Version:
    """The version that these pieces make; docs_size is no part of its id: Parquet's bytes change with the library."""
    parts = [piece.model_dump(exclude={"docs_size"}) for piece in pieces]
    return Version(
        id=fingerprint(pieces=parts, dtype=dtype, keep_columns=list(keep_columns)),
        documents=sum(piece.documents for piece in pieces),
        tokens=sum(piece.tokens for piece in pieces),
        dtype=dtype,
        keep_columns=tuple(keep_columns),
        pieces=tuple(pieces),
    )


def encode_version(version: Version) -> bytes:
    return version.model_dump_json(indent=1).encode() + b"\n"


def read_version(path: Path) -> Version:
    """The version that a `version.json` describes. Raises DamagedFileError."""
    try:
        version = Version.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DamagedFileError(f"{path}: missing; expected a dataset that prep-assets published") from error
    except ValidationError as error:
        raise DamagedFileError(f"{path}: not a version's description ({error.error_count()} faults)") from error
    expected = version_of(version.pieces, version.dtype, version.keep_columns)
    if version != expected:
        raise DamagedFileError(f"{path}: id {version.id}; its content has the id {expected.id}")
    return version


def encode_manifest(version: Version) -> bytes:
    """`fast_llm_dataset.json`; weights are shares of tokens."""
    datasets = [
        {
            "prefix": piece.prefix,
            "num_documents": piece.documents,
            "num_tokens": piece.tokens,
            "weight": piece.tokens / version.tokens,
        }
        for piece in version.pieces
    ]
    return json.dumps({"datasets": datasets}, indent=4).encode()


def encode_fast_llm_config(version: Version) -> bytes:
    """`fast_llm_config.yaml`: one memmap dataset, or a blend of at least two."""
    datasets = [{"type": "memmap", "path": piece.prefix} for piece in version.pieces]
    weights = [piece.tokens for piece in version.pieces]
    blend = {"type": "blended", "datasets": datasets, "weights": weights}
    tokens = {"num_tokens": version.tokens, "num_documents": version.documents, "data_type": version.dtype}
    metadata = {"num_tokens": version.tokens, "tokens": tokens}
    config = {"config": datasets[0] if len(datasets) == 1 else blend, "metadata": metadata}
    return yaml.safe_dump(config, sort_keys=False).encode()


def encode_megatron_data_args(version: Version, folder: Path) -> bytes:
    """`megatron_data_args.txt`. folder: absolute, as Megatron starts from its own working folder.

    Where white space in the folder's path would split it, prefixes stand alone, relative to the version's folder.
    """
    base = "" if any(character.isspace() for character in str(folder)) else f"{folder}/"
    return "".join(f"{piece.tokens / version.tokens} {base}{piece.prefix}\n" for piece in version.pieces).encode()
