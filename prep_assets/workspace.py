"""The folder that holds everything but what is published: whose it is, and who is at work in it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from prep_assets.errors import StorageError
from prep_assets.layout import Layout
from prep_assets.payload import is_ours_to_sweep, lock, make_folder, write_file


def claim(layout: Layout) -> None:
    """Makes the work folder ours, for this output alone.

    Raises StorageError where it serves another output, or holds files and is not ours.
    """
    try:
        owner = json.loads(layout.owner.read_bytes())["output"]
    except FileNotFoundError:
        names = [path.name for path in layout.work.iterdir()] if layout.work.is_dir() else []
        strangers = [name for name in names if name not in ("locks", "dagster") and not is_ours_to_sweep(name)]
        if strangers:
            raise StorageError(
                f"{layout.work}: holds {', '.join(sorted(strangers)[:5])} and was not made by prep-assets;"
                " choose another work_path"
            ) from None
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


@contextmanager
def running(layout: Layout) -> Iterator[None]:
    """Claims the work folder and tells clean-up, for the block, that somebody is at work in it."""
    claim(layout)
    with lock(layout.lock("run"), shared=True):
        yield
