"""All shards -> a published version: verified, complete, and visible by one rename."""

from datetime import UTC, datetime

from prep_assets.build import Build, Made, damage_retires, left_out
from prep_assets.errors import NotReadyError, SourceError
from prep_assets.formats.manifest import version_of
from prep_assets.formats.publications import Publication, Publications, read_pin, read_publications, write_publications
from prep_assets.layout import Layout, partition_name
from prep_assets.payload import lock
from prep_assets.publication import make_visible, names_of, refuse_foreign_files, write_version
from prep_assets.verify import check_piece


def publish(build: Build) -> Publication:
    """Publishes what all shards hold now; gives the record's entry, the former one where nothing changed.

    Raises NotReadyError, naming the shards and the command, where the index is not current or a shard is not made;
    SourceError for a dataset without a token; StorageError where a name of ours is taken by a file that is not.
    """
    layout = build.layout
    with lock(layout.lock("publish")):
        if pinned := read_pin(layout.pin):
            raise NotReadyError(
                f"{layout.output}: version {pinned} is pinned, nothing is published; prep-assets unpin lets refreshes"
                " publish again"
            )
        states = _made(build)
        made = [(pairs.payload, pairs.receipt) for *_, pairs in states if pairs.payload and pairs.receipt]
        record = read_publications(layout.publications)
        checked = {names[-1] for publication in record.versions for names in publication.payloads}
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
        publication = Publication(
            id=version.id,
            index=build.index.id,
            tokenizer=build.facts.identity,
            payloads=tuple((name(raw), name(tokens), name(pairs)) for raw, tokens, pairs in states),
            documents=version.documents,
            tokens=version.tokens,
            left_out=left_out(build),
            published=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        publication = _record(layout, record, publication)
        write_version(layout, version, made)
        make_visible(layout, version)
        return publication


def name(made: Made) -> str:
    """Of a payload that was made."""
    assert made.payload is not None
    return made.payload.name


def _made(build: Build) -> list[tuple[Made, Made, Made]]:
    """What the three stages made of every shard, in order."""
    build.refuse_overtaken()
    made = [build.made(shard) for shard in range(build.num_shards)]
    states = [(shard["raw_dataset"], shard["tokenized_partitions"], shard["memmap_shards"]) for shard in made]
    missing = [partition_name(shard) for shard, (*_, pairs) in enumerate(states) if not pairs.is_fresh]
    if missing:
        raise NotReadyError(
            f"memmap_shards is not made for the current source, tokenizer and recipe in {len(missing)} of {len(states)}"
            f" shards: {', '.join(missing[:20])}{' ...' if len(missing) > 20 else ''}; materialize raw_dataset,"
            " tokenized_partitions and memmap_shards for these partitions, or run prep-assets prepare"
        )
    return states


def _record(layout: Layout, record: Publications, publication: Publication) -> Publication:
    """The publication's entry in the record: the last one where it says the same, but for the time.

    It comes before the version itself, so that no version lies there that the record does not name; a killed
    publication leaves an entry without a version, which the next one takes out.
    """
    if record.versions and record.versions[-1].model_copy(update={"published": publication.published}) == publication:
        return record.versions[-1]
    others = (it for it in record.versions if it.id != publication.id and layout.version(it.id).is_dir())
    write_publications(layout.publications, Publications(versions=(*others, publication)))
    return publication
