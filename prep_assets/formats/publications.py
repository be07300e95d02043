"""Publication record, `<work_path>/publications.json`: the published versions in order, and their payloads."""

from pathlib import Path

from pydantic import BaseModel, NonNegativeInt, ValidationError

from prep_assets.errors import DamagedFileError
from prep_assets.payload import write_file


class Publication(BaseModel, frozen=True, extra="forbid"):
    """One published version. index: the source index it was made from; payloads: names of each shard's, by stage."""

    id: str
    index: str
    tokenizer: str
    payloads: tuple[tuple[str, str, str], ...]
    documents: NonNegativeInt
    tokens: NonNegativeInt
    left_out: dict[str, NonNegativeInt]
    published: str  # time, ISO 8601, UTC


class Publications(BaseModel, frozen=True, extra="forbid"):
    """The record; versions in the order of their publication, the newest last."""

    versions: tuple[Publication, ...] = ()


def read_publications(path: Path) -> Publications:
    """The record, empty where nothing was published yet. Raises DamagedFileError."""
    try:
        return Publications.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Publications()
    except ValidationError as error:
        raise DamagedFileError(
            f"{path}: not a publication record ({error.error_count()} faults); remove it and run prep-assets prepare,"
            " which begins a new one; older versions stay on the disk, but are listed and cleaned up no more:"
            " remove by hand those that nobody reads"
        ) from error


def read_pin(path: Path) -> str | None:
    """The id of the version that `latest` is held at; None where refreshes publish."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def write_publications(path: Path, publications: Publications) -> None:
    write_file(path, publications.model_dump_json(indent=1).encode() + b"\n")
