"""A version on the disk: its files, `latest`, and the names at the top level; whether they are what they should be."""

import os
from pathlib import Path

from prep_assets.build import has_sizes
from prep_assets.errors import DamagedFileError, StorageError
from prep_assets.formats.manifest import (
    Version,
    encode_fast_llm_config,
    encode_manifest,
    encode_megatron_data_args,
    encode_version,
    read_version,
)
from prep_assets.layout import FAST_LLM_CONFIG, MANIFEST, MEGATRON_DATA_ARGS, VERSION, Layout, piece_files
from prep_assets.payload import create, link_or_copy, new_payload, retire, write_symlink
from prep_assets.receipt import Receipt


def names_of(version: Version) -> list[str]:
    """The names of all files of a version."""
    pieces = [name for piece in version.pieces for name in piece_files(piece.prefix)]
    return [*pieces, MANIFEST, FAST_LLM_CONFIG, MEGATRON_DATA_ARGS, VERSION]


def write_version(layout: Layout, version: Version, made: list[tuple[Path, Receipt]]) -> None:
    """Makes the version's folder from payloads of pairs, whole at once; a whole one that is there stays."""
    folder = layout.version(version.id)
    if folder.exists():
        if _is_whole(folder, version):
            return
        retire(folder)
    descriptions = {
        MANIFEST: encode_manifest(version),
        FAST_LLM_CONFIG: encode_fast_llm_config(version),
        MEGATRON_DATA_ARGS: encode_megatron_data_args(version, folder),
        VERSION: encode_version(version),
    }
    with new_payload(folder) as unfinished:
        for payload, receipt in made:
            for piece in receipt.pieces:
                for name in piece_files(piece.prefix):
                    link_or_copy(payload / name, unfinished / name)
        for name, content in descriptions.items():
            with create(unfinished / name) as stream:
                stream.write(content)


def _is_whole(folder: Path, version: Version) -> bool:
    """Whether the folder holds the version, each file of its size."""
    try:
        same = read_version(folder / VERSION) == version
        return (
            same and (folder / MANIFEST).read_bytes() == encode_manifest(version) and has_sizes(folder, version.pieces)
        )
    except (DamagedFileError, OSError):
        return False


def refuse_foreign_files(layout: Layout, names: list[str]) -> None:
    """Raises StorageError where a name that we would publish under is taken by something that is not ours."""
    for path in (layout.latest, *(layout.output / name for name in names)):
        if os.path.lexists(path) and not _is_our_link(layout, path):
            raise StorageError(f"{path}: not a link of prep-assets; move it away or choose another output_path")


def _link_target(path: Path) -> str | None:
    return os.readlink(path) if path.is_symlink() else None  # noqa: PTH115  (Path would normalize it)


def _is_our_link(layout: Layout, path: Path) -> bool:
    target = _link_target(path) or ""
    return target.startswith("versions/") if path == layout.latest else target == f"{layout.latest.name}/{path.name}"


def make_visible(layout: Layout, version: Version) -> None:
    """Points `latest` at a version by one rename, with a name at the top level for each of its files."""
    names = names_of(version)
    for name in names:  # before the switch: a name that leads nowhere yet is not seen, a missing one would be
        if not (layout.output / name).is_symlink():
            write_symlink(layout.output / name, f"{layout.latest.name}/{name}")
    if latest_id(layout) != version.id:
        write_symlink(layout.latest, f"versions/{version.id}")
    for path in sorted(layout.output.iterdir()):
        if path.name not in names and path != layout.latest and _is_our_link(layout, path):
            retire(path)


def latest_id(layout: Layout) -> str | None:
    """The id of the version that `latest` leads to."""
    return (_link_target(layout.latest) or "").removeprefix("versions/") or None


def is_visible(layout: Layout, identifier: str) -> bool:
    """Whether `latest` and every name at the top level lead to this version, and it is whole."""
    folder = layout.version(identifier)
    if latest_id(layout) != identifier:
        return False
    try:
        version = read_version(folder / VERSION)
    except DamagedFileError:
        return False
    return _is_whole(folder, version) and all((layout.output / name).exists() for name in names_of(version))
