"""Verify: a published dataset against what was written: structure, sizes, digests."""

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b, file_digest
from itertools import chain
from pathlib import Path

from prep_assets.errors import DamagedFileError, PrepAssetsError
from prep_assets.formats.indexed_dataset import IndexedDataset
from prep_assets.formats.manifest import (
    Version,
    encode_fast_llm_config,
    encode_manifest,
    encode_megatron_data_args,
    encode_version,
    read_version,
)
from prep_assets.formats.sidecar import read_sidecar
from prep_assets.layout import FAST_LLM_CONFIG, MANIFEST, MEGATRON_DATA_ARGS, VERSION, piece_files
from prep_assets.receipt import Piece


def descriptions(version: Version, folder: Path) -> dict[str, bytes]:
    """The files of a version that say what it holds, by name. folder: where it lies, absolute."""
    return {
        MANIFEST: encode_manifest(version),
        FAST_LLM_CONFIG: encode_fast_llm_config(version),
        MEGATRON_DATA_ARGS: encode_megatron_data_args(version, folder),
        VERSION: encode_version(version),
    }


def verify(path: Path) -> Iterator[str]:
    """The faults of a published dataset, a line each, with what to do; path: an output folder or one version's."""
    folder = path / "latest" if (path / "latest").is_symlink() else path
    folder = folder.resolve()
    try:
        version = read_version(folder / VERSION)
    except PrepAssetsError as error:
        yield str(error)
        return
    faults = [_description_faults(folder, version)]
    faults += (piece_faults(folder, piece, version.keep_columns) for piece in version.pieces)
    for fault in chain.from_iterable(faults):
        yield f"{fault}; remove it and run prep-assets prepare, which makes the current version's files again"


def _description_faults(folder: Path, version: Version) -> Iterator[str]:
    for name, content in descriptions(version, folder).items():
        try:
            if _anywhere((folder / name).read_bytes()) != _anywhere(content):
                yield f"{folder / name}: not what version {version.id} says there"
        except OSError as error:
            yield f"{folder / name}: {error.strerror}"


def check_piece(folder: Path, piece: Piece, keep_columns: Sequence[str]) -> None:
    """Raises DamagedFileError, naming the file and what was expected, for the first fault of a pair and its sidecar."""
    for fault in piece_faults(folder, piece, keep_columns):
        raise DamagedFileError(fault)


def piece_faults(folder: Path, piece: Piece, keep_columns: Sequence[str]) -> Iterator[str]:
    """The faults of a pair and its sidecar, each naming the file, what was found and what was expected."""
    bin_name, idx_name, docs_name = piece_files(piece.prefix)
    pair = ((bin_name, piece.bin_size, piece.bin_digest), (idx_name, piece.idx_size, piece.idx_digest))
    sound = True
    for name, size, digest in pair:
        fault = _file_fault(folder / name, size, digest)
        if fault:
            sound = False
            yield fault
    if sound:  # the structure of a damaged file says nothing more
        try:
            dataset = IndexedDataset(folder / piece.prefix)
            if (len(dataset), len(dataset.tokens)) != (piece.documents, piece.tokens):
                yield (
                    f"{folder / idx_name}: {len(dataset)} documents, {len(dataset.tokens)} tokens;"
                    f" expected {piece.documents} and {piece.tokens}"
                )
        except DamagedFileError as error:
            yield str(error)
    try:
        sidecar = read_sidecar(folder / docs_name, keep_columns, piece.docs_digest)
        if len(sidecar.tokens) != piece.documents:
            yield f"{folder / docs_name}: {len(sidecar.tokens)} documents; expected {piece.documents}"
    except DamagedFileError as error:
        yield str(error)


def _anywhere(description: bytes) -> bytes:
    """Without the folder of the pairs: a version may have been moved or copied."""
    return re.sub(rb" /\S*/", b" ", description)


def _file_fault(path: Path, size: int, digest: str) -> str | None:
    try:
        with path.open("rb") as stream:
            found = path.stat().st_size
            if found != size:
                return f"{path}: {found} bytes; expected {size}"
            content = file_digest(stream, lambda: blake2b(digest_size=16)).hexdigest()
    except FileNotFoundError:
        return f"{path}: missing; expected {size} bytes"
    return None if content == digest else f"{path}: its bytes have the digest {content}; expected {digest}"
