"""The Hugging Face hub: which files of a repository a recipe means, by its card, its names, or the hub's conversion."""

import importlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep_assets.errors import SourceError, TokenizerError
from prep_assets.sources.files import Source, source_of
from prep_assets.sources.repository import RemoteFile, Repository, import_client

CONVERSION = "refs/convert/parquet"  # the branch of the hub's own Parquet conversion of a dataset's main branch
CONVERTED = re.compile(r"(?P<config>[^/]+)/(?P<partial>partial-)?(?P<split>[^/]+?)(?:-part\d+)?/\d{4,}\.parquet")
CARDS = ("README.md", ".huggingface.yaml")  # where a dataset says which files its configurations and splits are


@dataclass(frozen=True)
class Snapshot:
    """What a recipe means at one commit, by name, and what the person should know about it."""

    repository: Repository
    commit: str
    files: Mapping[str, RemoteFile]
    notices: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether there is nothing to download."""
        return not self.repository.missing(self.commit, self.files)

    def source(self) -> Source:
        """The files, which must be here."""
        root = self.repository.root(self.commit)
        identities = {name: f"blob:{file.blob}" for name, file in self.files.items()}
        return source_of(root, [root / name for name in self.files], identities, self.notices, self.commit)


def fetch(
    repo_id: str,
    *,
    config_name: str | None,
    revision: str | None,
    split: str,
    data_files: Sequence[str] | None,
    downloads: Path,
    workers: int,
) -> Source:
    """The files of a configuration's split, downloaded where they are not here yet."""
    found = resolve(
        repo_id, config_name=config_name, revision=revision, split=split, data_files=data_files, downloads=downloads
    )
    found.repository.download(found.commit, found.files, workers)
    return found.source()


def fetch_tokenizer(repo_id: str, *, revision: str | None, downloads: Path) -> Path:
    """A folder with the `tokenizer.json` of a model repository and, if it has one, its `tokenizer_config.json`."""
    repository = Repository(repo_id, "model", downloads)
    commit = repository.commit(revision)
    listing = repository.listing(commit)
    if "tokenizer.json" not in listing:
        raise TokenizerError(f"{repo_id}: no tokenizer.json at commit {commit}; name a model that has one, or a file")
    names = ("tokenizer.json", "tokenizer_config.json")
    return repository.download(commit, {name: listing[name] for name in names if name in listing}, workers=2)


def resolve(
    repo_id: str,
    *,
    config_name: str | None,
    revision: str | None,
    split: str,
    data_files: Sequence[str] | None,
    downloads: Path,
) -> Snapshot:
    """The commit that `revision` names now and the split's files there; only listings and the card are asked for."""
    repository = Repository(repo_id, "dataset", downloads)
    commit = repository.commit(revision)
    listing = repository.listing(commit)
    if data_files is not None:
        names = repository.remember(commit, (data_files,), lambda: _matching(repository, commit, listing, data_files))
    elif revision == CONVERSION or _is_conversion(listing):
        names = _converted(repo_id, listing, config_name, split)
    elif scripts := _scripts(repo_id, listing):
        return _conversion(repository, scripts, config_name, revision, split)
    else:
        names = repository.remember(
            commit, (config_name, split), lambda: _declared(repository, commit, listing, config_name, split)
        )
    return Snapshot(repository, commit, {name: listing[name] for name in names})


def _is_conversion(listing: Mapping[str, RemoteFile]) -> bool:
    """Whether this is a commit of a conversion: `datasets` would take partial splits and mix configurations."""
    names = [name for name in listing if not name.startswith(".")]
    return bool(names) and all(CONVERTED.fullmatch(name) for name in names)


def _scripts(repo_id: str, listing: Mapping[str, RemoteFile]) -> list[str]:
    """The Python files of a repository that is a loading script: named as itself, or beside no data."""
    own = f"{repo_id.rpartition('/')[2]}.py"
    scripts = [name for name in listing if name.endswith(".py") and "/" not in name]
    others = [it for it in listing if not it.startswith(".") and not it.endswith((".py", ".md", "_infos.json"))]
    return [own] if own in scripts else [] if others else scripts


def _conversion(
    repository: Repository, scripts: list[str], config_name: str | None, revision: str | None, split: str
) -> Snapshot:
    where = f"{repository.repo_id}: the repository is a loading script ({scripts[0]}), which is never run"
    if revision is not None:
        raise SourceError(
            f"{where}, and the hub's Parquet conversion is of its main branch, not of revision {revision!r}; leave "
            f"`revision` out to read the conversion, or pin it with `revision: {CONVERSION}` or a commit of that branch"
        )
    try:
        commit = repository.commit(CONVERSION)
    except SourceError as error:
        raise SourceError(
            f"{where}, and the hub has no Parquet conversion of it; name files of it with `dataset.data_files`, or "
            "convert it yourself and name the folder"
        ) from error
    listing = repository.listing(commit)
    names = _converted(repository.repo_id, listing, config_name, split)
    notice = f"{where}; read instead: the hub's Parquet conversion of its main branch ({CONVERSION}, commit {commit})"
    return Snapshot(repository, commit, {name: listing[name] for name in names}, (notice,))


def _converted(repo_id: str, listing: Mapping[str, RemoteFile], config_name: str | None, split: str) -> list[str]:
    """A split's files where they lie as `<config>/<split>/0000.parquet`."""
    matches = [match for match in map(CONVERTED.fullmatch, listing) if match]
    configs = sorted({match["config"] for match in matches})
    config = config_name or (configs[0] if len(configs) == 1 else "default")
    if config not in configs:
        raise _no_config(repo_id, config_name, configs)
    of_config = [match for match in matches if match["config"] == config]
    chosen = [match for match in of_config if match["split"] == split]
    if not chosen:
        raise _no_split(repo_id, split, sorted({match["split"] for match in of_config}))
    if any(match["partial"] for match in chosen):
        raise SourceError(
            f"{repo_id}: the hub's Parquet conversion of {config}/{split} is partial: it holds only the beginning, and "
            "the rest would be lost silently; name files of the dataset with `dataset.data_files`, or convert it "
            "yourself and name the folder"
        )
    return [match.string for match in chosen]


def _no_config(repo_id: str, config_name: str | None, configs: Sequence[str]) -> SourceError:
    found = "several configurations and none named" if config_name is None else f"no configuration {config_name!r}"
    return SourceError(f"{repo_id}: {found}; set `dataset.config_name` to one of: {', '.join(configs)}")


def _no_split(repo_id: str, split: str, splits: Sequence[str]) -> SourceError:
    return SourceError(f"{repo_id}: no split {split!r}; set `dataset.split` to one of: {', '.join(splits)}")


@contextmanager
def _skeleton(
    repository: Repository, commit: str, listing: Mapping[str, RemoteFile], cards: Sequence[str]
) -> Iterator[Path]:
    """The repository as empty files, for `datasets` to find its way in: it goes by names and the card alone."""
    with tempfile.TemporaryDirectory(prefix="prep_assets-") as temporary:
        root = Path(temporary).resolve() / "repository"
        for name in listing:
            if not name.endswith((".py", "dataset_infos.json")):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).touch()
        if cards:
            here = repository.download(commit, {name: listing[name] for name in cards}, workers=1)
            for name in cards:
                shutil.copyfile(here / name, root / name)
        yield root


def _declared(
    repository: Repository, commit: str, listing: Mapping[str, RemoteFile], config_name: str | None, split: str
) -> list[str]:
    """A split's files by the rules of `datasets`: what the card declares, else what the names say."""
    datasets = _import_datasets()
    with _skeleton(repository, commit, listing, [name for name in CARDS if name in listing]) as root:
        try:
            builder = datasets.load_dataset_builder(str(root), name=config_name, cache_dir=str(root.parent / "cache"))
            files = builder.config.data_files or {}
        except Exception as error:  # whatever a card can be wrong in
            configs = _configs(datasets, root)
            if configs and (config_name not in configs if config_name else len(configs) > 1):
                raise _no_config(repository.repo_id, config_name, configs) from error
            cause = str(error).partition("\n")[0].replace(f"{root}/", "").replace(str(root), repository.repo_id)
            raise SourceError(
                f"{repository.repo_id}: `datasets` finds no data in this repository: {cause}; name files of it with "
                "`dataset.data_files`"
            ) from error
        if split not in files:
            raise _no_split(repository.repo_id, split, list(files))
        return _names(root, files[split])


def _configs(datasets: Any, root: Path) -> list[str]:
    try:
        return list(datasets.get_dataset_config_names(str(root)))
    except Exception:  # the caller reports what was wrong
        return []


def _matching(
    repository: Repository, commit: str, listing: Mapping[str, RemoteFile], patterns: Sequence[str]
) -> list[str]:
    """The files that names or patterns relative to the repository mean; each must mean one."""
    names: list[str] = [pattern for pattern in patterns if pattern in listing]
    others = [pattern for pattern in patterns if pattern not in listing]
    if others:
        resolve_pattern = _import_datasets().data_files.resolve_pattern
        with _skeleton(repository, commit, listing, ()) as root:
            for pattern in others:
                try:
                    if "://" in pattern or ".." in pattern.split("/") or pattern.startswith("/"):
                        raise FileNotFoundError(pattern)
                    names += _names(root, resolve_pattern(pattern, str(root)))
                except FileNotFoundError as error:
                    raise SourceError(
                        f"{repository.repo_id}: no file of it at commit {commit} matches `data_files` {pattern!r}; "
                        f"it has {', '.join(list(listing)[:5])}{', …' if len(listing) > 5 else ''}"
                    ) from error
    return list(dict.fromkeys(names))


def _names(root: Path, paths: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(Path(path).relative_to(root).as_posix() for path in paths))


def _import_datasets() -> Any:
    import_client()
    return importlib.import_module("datasets")
