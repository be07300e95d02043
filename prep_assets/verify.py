"""Verify: a published dataset against what was written: structure, sizes, digests."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b, file_digest
from pathlib import Path

from prep_assets.errors import DamagedFileError, PrepAssetsError
from prep_assets.formats.indexed_dataset import IndexedDataset
from prep_assets.formats.manifest import encode_manifest, read_version
from prep_assets.formats.sidecar import read_sidecar
from prep_assets.layout import MANIFEST, VERSION, piece_files
from prep_assets.receipt import Piece


def verify(path: Path) -> Iterator[str]:
    """The faults of a published dataset, a line each; path: an output folder or one version's."""
    folder = path / "latest" if (path / "latest").is_symlink() else path
    folder = folder.resolve()
    try:
        version = read_version(folder / VERSION)
    except PrepAssetsError as error:
        yield str(error)
        return
    try:
        if (folder / MANIFEST).read_bytes() != encode_manifest(version):
            yield f"{folder / MANIFEST}: not the manifest of version {version.id}"
    except OSError as error:
        yield f"{folder / MANIFEST}: {error.strerror}"
    for piece in version.pieces:
        yield from piece_faults(folder, piece, version.keep_columns)


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
