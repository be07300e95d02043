"""All shards -> a published version: verified, complete, and visible by one rename."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from prep_assets.build import Build, damage_retires
from prep_assets.errors import NotReadyError, SourceError
from prep_assets.formats.manifest import version_of
from prep_assets.formats.publications import Publication, Publications, read_publications, write_publications
from prep_assets.formats.source_index import current_id
from prep_assets.layout import Layout, partition_name
from prep_assets.payload import lock
from prep_assets.publication import make_visible, names_of, refuse_foreign_files, write_version
from prep_assets.receipt import Receipt, Stage
from prep_assets.verify import check_piece

STAGE: Stage = "memmap_shards"


def publish(build: Build) -> Publication:
    """Publishes what all shards hold now; gives the record's entry, the former one where nothing changed.

    Raises NotReadyError, naming the shards and the command, where the index is not current or a shard is not made;
    SourceError for a dataset without a token; StorageError where a name of ours is taken by a file that is not.
    """
    layout = build.layout
    with lock(layout.lock("publish")):
        made = _made(build)
        record = read_publications(layout.publications)
        checked = {payload for publication in record.versions for payload in publication.payloads}
        for payload, receipt in made:
            if receipt.inputs not in checked:
                with damage_retires(payload):
                    for piece in receipt.pieces:
                        check_piece(payload, piece, build.recipe.dataset.keep_columns)
        pieces = [piece for _, receipt in made for piece in receipt.pieces]
        version = version_of(pieces, build.dtype.name, build.recipe.dataset.keep_columns)
        if not version.tokens:
            raise SourceError(
                f"{build.recipe.dataset.name_or_path}: not one token in {sum(r.documents for _, r in made)} documents;"
                " nothing is published and the former version stays"
            )
        refuse_foreign_files(layout, names_of(version))
        write_version(layout, version, made)
        publication = Publication(
            id=version.id,
            index=build.index.id,
            payloads=tuple(receipt.inputs for _, receipt in made),
            documents=version.documents,
            tokens=version.tokens,
            left_out=_left_out(build, made),
            published=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        publication = _record(layout, record, publication)
        make_visible(layout, version)
        return publication


def _made(build: Build) -> list[tuple[Path, Receipt]]:
    """The pairs of every shard, in order."""
    current = current_id(build.layout.index)
    if current != build.index.id:
        raise NotReadyError(
            f"this run worked from source index {build.index.id}, but {current} is newer:"
            " it must not overtake; materialize again, or run prep-assets prepare"
        )
    states = [build.made(shard)[STAGE] for shard in range(len(build.index.shards))]
    missing = [partition_name(shard) for shard, made in enumerate(states) if not made.is_fresh]
    if missing:
        raise NotReadyError(
            f"memmap_shards is not made for the current source, tokenizer and recipe in {len(missing)} of {len(states)}"
            f" shards: {', '.join(missing[:20])}{' ...' if len(missing) > 20 else ''}; materialize raw_dataset,"
            " tokenized_partitions and memmap_shards for these partitions, or run prep-assets prepare"
        )
    return [(made.payload, made.receipt) for made in states if made.payload and made.receipt]


def _left_out(build: Build, made: list[tuple[Path, Receipt]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for file in build.index.files:
        total.update({"null": file.null_rows, "bad": len(file.bad_rows)})
    for _, receipt in made:
        total.update(receipt.left_out)
    return dict(total)


def _record(layout: Layout, record: Publications, publication: Publication) -> Publication:
    """The publication's entry in the record: the last one where it says the same, but for the time."""
    if record.versions and record.versions[-1].model_copy(update={"published": publication.published}) == publication:
        return record.versions[-1]
    others = tuple(former for former in record.versions if former.id != publication.id)
    write_publications(layout.publications, Publications(versions=(*others, publication)))
    return publication
