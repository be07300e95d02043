"""The files of a source: which files a name means, in which order, and how an unchanged one is recognized."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from prep_assets.errors import SourceError, StorageError

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".text": "text",
}
SETTLING = 2_000_000_000  # ns: a file younger than this when it was read may change again under the same time stamp
COMPRESSIONS = ("gz", "zst", "bz2", "xz")
TABLES = frozenset({"parquet", "arrow"})  # compressed inside; one kind to a reader, so they may lie together
ALLOWED = f"{' '.join(FORMATS)}, all but .parquet and .arrow also with .{' .'.join(COMPRESSIONS)}"

CARD = re.compile(
    r"(readme|licen[cs]e|copying|notice|citation)(\.(md|txt|rst|cff|bib))?"
    r"|(dataset_infos?|dataset_dict|state)\.json",
    re.IGNORECASE,
)
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
MAGIC = re.compile(r"[*?\[]")  # what makes a name a pattern, unless it exists literally


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    name: POSIX path relative to the source's root, with compression suffix; format: a value of FORMATS;
    compression: one of COMPRESSIONS; identity: equal identity means unchanged bytes; size: bytes on disk.
    """

    name: str
    path: Path
    format: str
    compression: str | None
    identity: str
    size: int

    @property
    def stem(self) -> str:
        """The name without compression suffix: re-compressing a file changes neither its place nor its shard."""
        return split_name(self.name)[0]


@dataclass(frozen=True)
class Source:
    """Files in natural order; notices: what a person should be told; revision: the hub's commit."""

    files: tuple[SourceFile, ...]
    notices: tuple[str, ...] = ()
    revision: str | None = None


def natural_key(name: str) -> tuple[list[tuple[str, int, str]], str]:
    """Sorts names without compression suffix by character, a run of 0-9 as `0` and then by value; ties by full name."""
    runs = re.findall(r"[0-9]+|[^0-9]", split_name(name)[0])
    # A value as (digits, text without leading zeros): compares like the number, at any length.
    values = [("0", len(run.lstrip("0")), run.lstrip("0")) if run[0] in "0123456789" else (run, 0, "") for run in runs]
    return values, name


def is_local(name_or_path: str, base: Path) -> bool:
    """Whether a name means files of this machine (else it may be a repository of the hub)."""
    if name_or_path.startswith((".", "~", "/")) or (base / name_or_path).exists():
        return True
    return bool(MAGIC.search(name_or_path)) and next(_matching(*_literal(base, name_or_path)), None) is not None


def list_files(name_or_path: str, base: Path, data_files: Sequence[str] | None, split: str | None) -> Source:
    """The local files that a folder, file or pattern means.

    name_or_path: relative to base; data_files: names or patterns below the folder name_or_path; split: None where the
    user set none. Splits are inferred only in a folder without data_files: who names files gets those.
    Raises SourceError where nothing is found, formats are mixed, or the split is not there.
    """
    try:
        path = base / Path(name_or_path).expanduser()
    except RuntimeError as error:
        raise SourceError(f"{name_or_path}: {error}; write the path out") from error
    try:
        if data_files is not None:
            return source_of(path, _named(path, data_files))
        if path.is_dir():
            return _list_folder(path, split)
        if path.exists():
            return source_of(path.parent, [_allowed(path)])
        if MAGIC.search(name_or_path) and (paths := list(_matching(*(found := _literal(base, str(path)))))):
            return source_of(found[0], paths)
    except OSError as error:
        raise StorageError(
            f"{error.filename or path}: {error.strerror or error}; the source cannot be listed"
        ) from error
    raise SourceError(f"{path}: no such file or folder, and no file matches it; correct `dataset.name_or_path`")


def source_of(
    root: Path,
    paths: Sequence[Path],
    identities: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
    revision: str | None = None,
) -> Source:
    """These files below root as a source: of known formats, not mixed, in natural order.

    identities: by relative name; where there is none, size, times and inode stand for the bytes.
    """
    names = {path.relative_to(root).as_posix(): path for path in dict.fromkeys(paths)}
    formats = {name: known for name in names if (known := _format(name))}
    others = sorted(names.keys() - formats.keys(), key=natural_key)
    if not formats:
        found = _some(others or sorted(it.name for it in root.iterdir()))
        raise SourceError(f"{root}: no data files; looked for the formats {ALLOWED}; found {found or 'nothing'}")
    ordered = sorted(formats, key=natural_key)
    examples = {formats[name]: name for name in reversed(ordered)}
    if len(examples) > 1 and not TABLES.issuperset(examples):
        mixed = ", ".join(f"{name} ({known})" for known, name in reversed(examples.items()))
        raise SourceError(f"{root}: formats are mixed: {mixed}; name the files of one with `dataset.data_files`")
    notices = list(notices)
    if others:
        notices.append(f"{root}: {len(others)} files of other formats are not read: {_some(others)}")
    stems = Counter(split_name(name)[0] for name in ordered)
    if twins := [name for name in ordered if stems[split_name(name)[0]] > 1]:
        notices.append(f"{root}: files that differ in compression alone are all read: {_some(twins)}")
    files = [_source_file(name, names[name], formats[name], (identities or {}).get(name)) for name in ordered]
    return Source(tuple(files), tuple(notices), revision)


def _source_file(name: str, path: Path, known: str, identity: str | None) -> SourceFile:
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise SourceError(f"{str(path)!r}: the file's name is not UTF-8; rename it")
    compression = split_name(name)[1]
    if compression and known in TABLES:
        raise SourceError(f"{path}: {known} is compressed inside and read in place; decompress .{compression} first")
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise SourceError(f"{path}: missing, or a link to nothing; restore it or take it away") from error
    return SourceFile(name, path, known, compression, identity or identity_of(path), stat.st_size)


def identity_of(path: Path) -> str:
    """What stands for a local file's bytes: size, times and inode."""
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"


def is_settled(identity: str, began: int) -> bool:
    """Whether a change of the file after this time (ns) must show in its identity: a hub blob's always does."""
    if identity.startswith("blob:"):
        return True
    _, modified, changed, _ = map(int, identity.split(":"))
    return max(modified, changed) + SETTLING < began


def split_name(name: str) -> tuple[str, str | None]:
    """A name without its compression suffix, and the compression."""
    stem, dot, suffix = name.rpartition(".")
    return (stem, suffix.lower()) if dot and suffix.lower() in COMPRESSIONS else (name, None)


def _format(name: str) -> str | None:
    return FORMATS.get(PurePosixPath(split_name(name)[0]).suffix.lower())


def _allowed(path: Path) -> Path:
    if not _format(path.name):
        raise SourceError(f"{path}: not a known format; allowed are {ALLOWED}")
    return path


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _is_ignored(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith(("~", ".tmp", ".part")) or bool(CARD.fullmatch(name))


def _walk(folder: Path, ancestors: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """The files below a folder; of one that `save_to_disk` wrote, those that it lists (others are its caches)."""
    stat = folder.stat()
    here = (stat.st_dev, stat.st_ino)
    if here in ancestors:  # a link to a folder above
        return
    if saved := _read_json(folder / "state.json").get("_data_files"):
        yield from (folder / file["filename"] for file in saved)
        return
    for entry in os.scandir(folder):
        if _is_ignored(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(folder / entry.name, ancestors | {here})
        elif entry.is_file() or entry.is_symlink():  # a broken link is an error later, not silently nothing
            yield folder / entry.name


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise SourceError(f"{path}: not valid JSON: {error}; save the dataset again") from error
    return found if isinstance(found, dict) else {}


def _literal(base: Path, pattern: str) -> tuple[Path, str]:
    """The folder that a pattern begins with, and the rest: a part that exists literally is never a pattern."""
    root, parts = base, Path(pattern).expanduser().parts
    while parts and (root / parts[0]).exists() and (len(parts) > 1 or (root / parts[0]).is_dir()):
        root, parts = root / parts[0], parts[1:]
    return root, "/".join(parts)


def _matching(root: Path, pattern: str) -> Iterator[Path]:
    """The files below root that a relative pattern means; a folder means all files below it."""
    if not pattern:
        yield from _walk(root)
    elif (root / pattern).exists():
        yield root / pattern
    elif MAGIC.search(pattern):
        for path in sorted(root.glob(pattern)):
            if not any(map(_is_ignored, path.relative_to(root).parts)):
                yield from _walk(path) if path.is_dir() else [path]


def _named(folder: Path, patterns: Sequence[str]) -> list[Path]:
    if not folder.is_dir():
        raise SourceError(f"{folder}: not a folder; `dataset.data_files` names files below a folder")
    paths: list[Path] = []
    for pattern in patterns:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise SourceError(f"{folder}: `data_files` {pattern!r} leaves the folder; name files below it")
        found = (
            [_allowed(folder / pattern)] if (folder / pattern).is_file() else [*_matching(*_literal(folder, pattern))]
        )
        if not any(_format(path.name) for path in found):
            here = _some(sorted((path.relative_to(folder).as_posix() for path in _walk(folder)), key=natural_key))
            raise SourceError(
                f"{folder}: no data file matches `data_files` {pattern!r}; it has {here or 'none'} (read are {ALLOWED})"
            )
        paths += found
    return paths


def _list_folder(root: Path, split: str | None) -> Source:
    if splits := _read_json(root / "dataset_dict.json").get("splits"):
        chosen = split or (splits[0] if len(splits) == 1 else "train")
        if chosen not in splits:
            raise SourceError(f"{root}: no split {chosen!r}; set `dataset.split` to one of: {', '.join(splits)}")
        left = [name for name in splits if name != chosen]
        notices = [f"{root}: split {chosen!r} is read; left out: {', '.join(left)}"] if left else []
        return source_of(root, list(_walk(root / chosen)), notices=notices)
    groups: dict[str | None, list[Path]] = {}
    for path in _walk(root):
        groups.setdefault(_split_of(path.relative_to(root)) if _format(path.name) else "", []).append(path)
    others = groups.pop("", [])  # of unknown formats; never counted as a split
    asked = SPLITS.get((split or "train").lower(), split)
    if len(groups) == 1 and (split is None or groups.keys() <= {None, asked}):
        [asked] = groups
    counts = ", ".join(f"{len(paths)} {name or 'unmarked'}" for name, paths in groups.items() if name != asked)
    if groups and asked not in groups:
        raise SourceError(
            f"{root}: no file of split {asked!r}; there are {counts} files; set `dataset.split`, or name files with "
            "`dataset.data_files`"
        )
    notices = []
    if counts:
        read = f"{len(groups[asked])} files of split {asked!r} are read"
        notices = [
            f"{root}: {read}; left out: {counts} files; others are read by `dataset.split` or `dataset.data_files`"
        ]
    elif split and asked is None:
        notices = [f"{root}: no file's name tells a split; all are read as {split!r}"]
    return source_of(root, [*others, *groups.get(asked, [])], notices=notices)


def _split_of(name: Path) -> str | None:
    """The split that a path's words tell, the file's own name before its folders'; None where none or several do."""
    for part in reversed(name.parts):
        marks = {SPLITS[word] for word in re.findall(r"[^\W\d_]+", part.lower()) if word in SPLITS}
        if len(marks) == 1:
            return marks.pop()
    return None
