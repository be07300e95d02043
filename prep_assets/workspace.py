"""The folder that holds everything but what is published: whose it is, and who is at work in it."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

from prep_assets.errors import StorageError
from prep_assets.layout import Layout
from prep_assets.payload import is_ours_to_sweep, lock, make_folder, write_file
from prep_assets.recipe import Recipe
from prep_assets.scan import list_source

BYTES_PER_TOKEN = 4  # of text, about
MADE_BEFORE = ("locks", "dagster", "downloads")  # what may lie there before the folder is claimed
COMPRESSED = 3  # bytes of text in a compressed one, about


def claim(layout: Layout, *, make: bool = True) -> None:
    """Makes the work folder ours, for this output alone; make False: leaves one that is nobody's as it is.

    Raises StorageError where it serves another output, or holds files and is not ours.
    """
    try:
        owner = json.loads(layout.owner.read_bytes())["output"]
    except FileNotFoundError:
        names = [path.name for path in layout.work.iterdir()] if layout.work.is_dir() else []
        strangers = [name for name in names if name not in MADE_BEFORE and not is_ours_to_sweep(name)]
        if strangers:
            raise StorageError(
                f"{layout.work}: holds {', '.join(sorted(strangers)[:5])} and was not made by prep-assets;"
                " choose another work_path"
            ) from None
        if not make:
            return
        make_folder(layout.work)
        # Relative, so that both folders can be moved together.
        data = {"output": os.path.relpath(layout.output, layout.work)}
        write_file(layout.owner, json.dumps(data).encode())
        return
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{layout.owner}: not readable as the owner's name; remove it if the folder is ours"
        ) from error
    if os.path.normpath(layout.work / owner) != os.path.normpath(layout.output):
        raise StorageError(
            f"{layout.work}: belongs to the dataset at {os.path.normpath(layout.work / owner)}, not to {layout.output};"
            " choose another work_path"
        )


def settle_shards(recipe: Recipe, layout: Layout) -> Recipe:
    """The recipe with its number of shards: `auto` becomes what the source's size asks for, once, and stays it.

    To change it later, write a number into the recipe.
    """
    if recipe.shards != "auto":
        return recipe
    path = layout.work / "shards"
    try:
        shards = int(path.read_text())
    except FileNotFoundError:
        files = list_source(recipe, layout).files
        text = sum(file.size * (COMPRESSED if file.compression or file.format == "parquet" else 1) for file in files)
        shards = max(1, math.ceil(text / BYTES_PER_TOKEN / recipe.tokens_per_shard))
        claim(layout)
        write_file(path, str(shards).encode())
    except ValueError as error:
        raise StorageError(f"{path}: not a number; remove it, or write `shards` into the recipe") from error
    return recipe.model_copy(update={"shards": shards})


@contextmanager
def running(layout: Layout) -> Iterator[None]:
    """Claims the work folder and tells clean-up, for the block, that somebody is at work in it."""
    claim(layout)
    with lock(layout.lock("run"), shared=True):
        yield
