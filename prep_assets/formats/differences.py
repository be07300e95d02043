"""Differences, `<work_path>/engines.json`: engines that gave other ids than the reference, by tokenizer."""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from prep_assets.errors import DamagedFileError
from prep_assets.payload import write_file


class Difference(BaseModel, frozen=True, extra="forbid"):
    """One engine, disproved for one tokenizer. engine: name and version; document: digest of one that differed."""

    engine: str
    tokenizer: str
    document: str


class Differences(BaseModel, frozen=True, extra="forbid"):
    """The record."""

    found: tuple[Difference, ...] = ()


def read_differences(path: Path) -> Differences:
    """The record, empty where nothing differed yet. Raises DamagedFileError."""
    try:
        return Differences.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Differences()
    except ValidationError as error:
        raise DamagedFileError(
            f"{path}: not a record of engines ({error.error_count()} faults); remove it, and set tokenizer.engine:"
            " tokenizers if an engine was found to differ"
        ) from error


def write_difference(path: Path, difference: Difference) -> None:
    """Adds to the record; two at once are to take turns."""
    found = read_differences(path).found
    if difference not in found:
        write_file(path, Differences(found=(*found, difference)).model_dump_json(indent=1).encode() + b"\n")
