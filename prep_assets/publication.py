"""A version on the disk: its files, `latest`, and the names at the top level; whether they are what they should be."""

import filecmp
import os
import re
from pathlib import Path

from prep_assets.build import damage_retires, has_sizes
from prep_assets.errors import DamagedFileError, StorageError
from prep_assets.formats.manifest import Version, read_version
from prep_assets.layout import FAST_LLM_CONFIG, MANIFEST, MEGATRON_DATA_ARGS, VERSION, Layout, piece_files
from prep_assets.payload import create, install_file, is_ours_to_sweep, link_or_copy, new_payload, retire, write_symlink
from prep_assets.receipt import Receipt
from prep_assets.verify import check_piece, descriptions

_DESCRIPTIONS = (MANIFEST, FAST_LLM_CONFIG, MEGATRON_DATA_ARGS, VERSION)
_PAIR_FILE = re.compile(r"shard_\d+_\d+\.(bin|idx|docs\.parquet)")


def names_of(version: Version) -> list[str]:
    """The names of all files of a version."""
    pieces = [name for piece in version.pieces for name in piece_files(piece.prefix)]
    return [*pieces, *_DESCRIPTIONS]


def write_version(layout: Layout, version: Version, made: list[tuple[Path, Receipt]]) -> None:
    """Makes the version's folder from payloads of pairs, whole at once; one that is there is mended, file by file.

    Raises DamagedFileError where a payload from which a file would be mended is damaged itself, and retires it.
    """
    folder = layout.version(version.id)
    pairs = [(payload, name) for payload, it in made for piece in it.pieces for name in piece_files(piece.prefix)]
    wrong = [(payload, name) for payload, name in pairs if not _is_same(payload / name, folder / name)]
    if not wrong and _is_whole(folder, version):
        return
    if folder.exists():
        copied = {payload for payload, _ in wrong}
        for payload, receipt in made:
            with damage_retires(payload):
                for piece in receipt.pieces if payload in copied else ():
                    check_piece(payload, piece, version.keep_columns)
    with new_payload(folder) as unfinished:
        for payload, name in wrong:
            link_or_copy(payload / name, unfinished / name)
        for name, content in descriptions(version, folder).items():
            with create(unfinished / name) as stream:
                stream.write(content)
        if folder.exists():
            for file in sorted(unfinished.iterdir()):
                install_file(file, folder / file.name)


def _is_same(path: Path, other: Path) -> bool:
    return other.exists() and (path.samefile(other) or filecmp.cmp(path, other, shallow=False))


def _is_whole(folder: Path, version: Version) -> bool:
    """Whether the folder holds the version: its descriptions, and each file of a pair at its size."""
    try:
        said = descriptions(version, folder).items()
        return has_sizes(folder, version.pieces) and all((folder / name).read_bytes() == data for name, data in said)
    except OSError:
        return False


def remove_version(layout: Layout, identifier: str) -> None:
    """Takes a version away; its folder stays where it holds what is not ours, as a trainer's cache."""
    folder = layout.version(identifier)
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    ours = {name for name in names if name in _DESCRIPTIONS or _PAIR_FILE.fullmatch(name) or is_ours_to_sweep(name)}
    if ours == names:
        return retire(folder)
    for name in sorted(ours, key=lambda name: name != VERSION):  # without this one it is no version any more
        retire(folder / name)


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
    """Points `latest` at a version by one rename, with a name at the top level for each of its files.

    Raises StorageError, and changes nothing, where one is taken by something that is not ours.
    """
    names = names_of(version)
    refuse_foreign_files(layout, names)
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
    return _is_whole(folder, version) and all(_is_our_link(layout, layout.output / name) for name in names_of(version))
