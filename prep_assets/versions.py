"""Versions: which are published, what distinguishes them, and which one `latest` leads to."""

from collections.abc import Iterator
from dataclasses import dataclass

from prep_assets.errors import NotReadyError, RecipeError
from prep_assets.formats.manifest import Version, read_version
from prep_assets.formats.publications import Publication, read_pin, read_publications
from prep_assets.layout import VERSION, Layout
from prep_assets.payload import lock, retire, write_file
from prep_assets.publication import latest_id, make_visible, names_of, refuse_foreign_files
from prep_assets.workspace import claim, running


@dataclass(frozen=True)
class Listed:
    """A published version. own_size: bytes that no version before it holds; changed: shards, against the one before."""

    publication: Publication
    own_size: int
    changed_shards: int
    documents_more: int  # than the version before; negative: fewer
    is_latest: bool
    is_pinned: bool


def list_versions(layout: Layout) -> Iterator[Listed]:
    """The versions that are there, in the order of their publication."""
    claim(layout, make=False)
    seen: set[str] = set()
    before: Publication | None = None
    for publication in read_publications(layout.publications).versions:
        if not _is_there(layout, publication):
            continue
        pieces = read_version(layout.version(publication.id) / VERSION).pieces
        new = [piece for piece in pieces if piece.bin_digest + piece.idx_digest not in seen]
        seen |= {piece.bin_digest + piece.idx_digest for piece in pieces}
        pairs = [names[-1] for names in publication.payloads]
        pairs_before = [names[-1] for names in before.payloads] if before else []
        yield Listed(
            publication,
            own_size=sum(piece.bin_size + piece.idx_size + piece.docs_size for piece in new),
            changed_shards=len(pairs)
            if len(pairs) != len(pairs_before)
            else sum(one != other for one, other in zip(pairs, pairs_before, strict=True)),
            documents_more=publication.documents - (before.documents if before else 0),
            is_latest=latest_id(layout) == publication.id,
            is_pinned=read_pin(layout.pin) == publication.id,
        )
        before = publication


def pin(layout: Layout, identifier: str) -> Version:
    """Points `latest` at a published version, given by its id or the beginning of it, and holds it there.

    Refreshes publish nothing until unpin. Raises NotReadyError for an id that is not published.
    """
    with running(layout), lock(layout.lock("publish")):
        version = _find(layout, identifier)
        refuse_foreign_files(layout, names_of(version))
        retire(layout.pin)  # wherever this is killed, a pin names what `latest` leads to
        make_visible(layout, version)
        write_file(layout.pin, version.id.encode())
        return version


def unpin(layout: Layout) -> None:
    """Lets refreshes publish again."""
    with running(layout), lock(layout.lock("publish")):
        if read_pin(layout.pin) is None:
            raise RecipeError(f"{layout.output}: no version is pinned")
        retire(layout.pin)


def _is_there(layout: Layout, publication: Publication) -> bool:
    return (layout.version(publication.id) / VERSION).exists()


def _find(layout: Layout, identifier: str) -> Version:
    known = [it.id for it in read_publications(layout.publications).versions if _is_there(layout, it)]
    found = [it for it in known if it.startswith(identifier)] if identifier else []
    if len(found) != 1:
        what = "is not published" if not found else f"begins {len(found)} ids"
        raise NotReadyError(
            f"{layout.output}: version {identifier or repr('')} {what}; there are {', '.join(known) or 'none'}"
        )
    return read_version(layout.version(found[0]) / VERSION)
