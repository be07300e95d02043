"""Receipt: what a payload is and how it came to be. Fingerprint: what it was made from."""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt, ValidationError

from prep_assets.errors import DamagedFileError
from prep_assets.payload import create

NAME = "receipt.json"

Stage = Literal["raw_dataset", "tokenized_partitions", "memmap_shards"]
STAGES: tuple[Stage, ...] = ("raw_dataset", "tokenized_partitions", "memmap_shards")


def fingerprint(**inputs: object) -> str:
    """BLAKE2b-128 of named plain values (JSON's kinds), 32 hex digits; the order of names does not matter."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return blake2b(text.encode(), digest_size=16).hexdigest()


class Piece(BaseModel, frozen=True, extra="forbid"):
    """One `.bin`/`.idx` pair of a shard and its sidecar; sizes in bytes, digests BLAKE2b-128 in hex."""

    prefix: str
    documents: NonNegativeInt
    tokens: NonNegativeInt
    bin_size: NonNegativeInt
    bin_digest: str
    idx_size: NonNegativeInt
    idx_digest: str
    docs_size: NonNegativeInt
    docs_digest: str  # of the sidecar's columns, never of Parquet's bytes


class Receipt(BaseModel, frozen=True, extra="forbid"):
    """What one payload holds. `content` is its digest, independent of batches, file formats and engine."""

    stage: Stage
    shard: NonNegativeInt
    made_from: dict[str, str]  # the named inputs, whose fingerprint names the payload
    content: str
    documents: NonNegativeInt
    tokens: NonNegativeInt = 0
    bytes: NonNegativeInt
    left_out: dict[str, NonNegativeInt] = {}  # reason -> documents
    reused: NonNegativeInt = 0  # documents whose text or tokens were copied from where they were before
    tokenized: NonNegativeInt = 0  # documents with tokens that the engine encoded
    with_special_text: NonNegativeInt = 0  # documents that hold the text of a special token
    with_end: NonNegativeInt = 0  # documents whose last id is the end token
    engines: tuple[str, ...] = ()  # and versions of those that gave the tokens, these or the ones they are copied from
    seconds: NonNegativeFloat
    pieces: tuple[Piece, ...] = ()

    @property
    def keep_columns(self) -> list[str]:
        """The columns that the payload carries beside the text or the tokens."""
        columns: list[str] = json.loads(self.made_from["keep_columns"])
        return columns

    @property
    def inputs(self) -> str:
        """Name of the payload."""
        return fingerprint(**self.made_from)


def write_receipt(payload: Path, receipt: Receipt) -> None:
    """The last file of a payload that is being written."""
    with create(payload / NAME) as stream:
        stream.write(receipt.model_dump_json(indent=1).encode() + b"\n")


def read_receipt(payload: Path) -> Receipt | None:
    """The receipt of a payload, also where its files were dropped since; None where none was made.

    Raises DamagedFileError for a receipt that cannot be read as one.
    """
    for path in (payload / NAME, dropped_receipt(payload)):
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            receipt = Receipt.model_validate_json(data)
        except ValidationError as error:
            raise DamagedFileError(
                f"{path}: not a receipt ({error.error_count()} faults); remove its folder"
            ) from error
        if receipt.inputs != payload.name:
            raise DamagedFileError(
                f"{path}: a receipt for {receipt.inputs}; expected {payload.name}; remove its folder"
            )
        return receipt
    return None


def dropped_receipt(payload: Path) -> Path:
    """Where the receipt lies once the payload's files are dropped."""
    return payload.with_name(payload.name + ".json")
