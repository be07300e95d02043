"""Reuse: the tokens of documents that were tokenized before, wherever they were placed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from prep_assets.build import CODE_VERSIONS, Build, damage_retires
from prep_assets.digest import Digests
from prep_assets.errors import DamagedFileError, NotReadyError
from prep_assets.formats.indexed_dataset import IndexedDataset
from prep_assets.formats.publications import Publication, read_publications
from prep_assets.formats.sidecar import read_sidecar
from prep_assets.formats.source_index import read_index
from prep_assets.formats.token_partition import Segment, segments
from prep_assets.layout import piece_files
from prep_assets.lookup import Lookup
from prep_assets.ragged import Part, gather
from prep_assets.receipt import STAGES, Piece, Receipt, read_receipt
from prep_assets.verify import check_piece

_STAGE = STAGES[1]


class _Source:
    """Tokens that lie somewhere on the disk, found by digest. segments: opened, and checked, when first needed."""

    def __init__(self, lookup: Lookup, engines: Sequence[str]) -> None:
        self._lookup, self.engines = lookup, engines
        self._segments: list[Segment] | None = None
        self._begins: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def open(self) -> list[Segment]:
        raise NotImplementedError

    def find(self, digests: Digests, places: npt.NDArray[np.int64]) -> Iterator[Part]:
        """Tokens of those of the documents at these places that are here."""
        found = self._lookup.find(digests[places])
        here = found >= 0
        if not here.any():
            return
        if self._segments is None:
            self._segments = self.open()
            self._begins = np.cumsum([0, *(len(segment.digests) for segment in self._segments)])
        which = np.searchsorted(self._begins, found, side="right") - 1
        for at in np.unique(which[here]).tolist():
            digests_here, offsets, ids = self._segments[at]
            rows = found[which == at] - self._begins[at]
            # A lookup is not part of what was checked: what it says is compared with what is there.
            right = (digests_here[rows] == digests[places[which == at]]).all(axis=1)
            rows, mine = rows[right], places[which == at][right]
            lengths = offsets[rows + 1] - offsets[rows]
            yield Part(mine, lengths, gather(ids, offsets[rows], lengths))


class _Partition(_Source):
    """A token partition that was made before."""

    def __init__(self, build: Build, payload: Path, receipt: Receipt) -> None:
        super().__init__(Lookup.read(payload, receipt.documents), receipt.engines)
        self._build, self._payload, self._receipt = build, payload, receipt

    def open(self) -> list[Segment]:
        dtype, receipt = self._build.facts.dtype, self._receipt
        with damage_retires(self._payload):
            return segments(self._payload, dtype, receipt.keep_columns, receipt.content)


class _Pair(_Source):
    """A published pair and its sidecar."""

    def __init__(self, folder: Path, piece: Piece, keep_columns: Sequence[str], engines: Sequence[str]) -> None:
        self._folder, self._piece, self._keep_columns = folder, piece, keep_columns
        docs_name = piece_files(piece.prefix)[2]
        self._digests = read_sidecar(folder / docs_name, keep_columns, piece.docs_digest).digests
        super().__init__(Lookup.of(self._digests), engines)

    def open(self) -> list[Segment]:
        check_piece(self._folder, self._piece, self._keep_columns)
        dataset = IndexedDataset(self._folder / self._piece.prefix)
        return [Segment(self._digests, dataset.entries.offsets, dataset.tokens)]


class KnownTokens:
    """What is known of a shard's documents: its own payloads of the same tokenizer, the newest first; then, where
    documents may have come from another shard, the others'; then the published pairs whose payloads are gone."""

    def __init__(self, build: Build, shard: int) -> None:
        self._build, self._shard = build, shard
        self._candidates = self._sources()
        self._opened: list[_Source] = []
        self.engines: set[str] = set()  # that gave the tokens found so far
        self._publications = read_publications(build.layout.publications).versions

    def find(self, digests: Digests) -> tuple[list[Part], npt.NDArray[np.int64]]:
        """The tokens that are known, and the places of the documents whose are not."""
        parts: list[Part] = []
        missing = np.arange(len(digests))
        at = 0
        while len(missing):
            if at == len(self._opened):
                if (source := next(self._candidates, None)) is None:
                    break
                self._opened.append(source)
            try:
                found = list(self._opened[at].find(digests, missing))
            except DamagedFileError as error:  # reuse is never needed, only cheap; what is ours is put away already
                self._build.progress.note(str(error))
                del self._opened[at]
                continue
            self.engines.update(self._opened[at].engines if found else ())
            for part in found:
                parts.append(part)
                missing = np.setdiff1d(missing, part.places, assume_unique=True)
            at += 1
        return parts, missing

    def _sources(self) -> Iterator[_Source]:
        shards = [self._shard, *self._others()]
        for shard in shards:
            for payload, receipt in self._build.former(_STAGE, shard):
                if self._fits(receipt):
                    if payload not in self._build.opened:
                        try:
                            self._build.opened[payload] = _Partition(self._build, payload, receipt)
                        except DamagedFileError as error:
                            self._build.progress.note(str(error))
                            continue
                    yield self._build.opened[payload]
        for publication in reversed(self._publications):
            yield from self._published(publication, shards)

    def _fits(self, receipt: Receipt) -> bool:
        """Whether these are the tokens that this code and this tokenizer give, by engines that nothing disproved."""
        wanted = {"code": CODE_VERSIONS[_STAGE], "tokenizer": self._build.facts.identity}
        is_same = all(receipt.made_from[key] == value for key, value in wanted.items())
        return is_same and self._build.disproved.isdisjoint(receipt.engines)

    def _others(self) -> list[int]:
        """The shards from which documents may have come here: where their number changed, or a file did, or went."""
        if not self._publications:
            return []
        last = self._publications[-1]
        if len(last.payloads) == self._build.num_shards:
            if self._build.index.shard_by == "document":
                return []
            try:
                former = read_index(self._build.layout.index, last.index)
            except (NotReadyError, DamagedFileError):
                return []
            if {file.content for file in former.files} <= {file.content for file in self._build.index.files}:
                return []
        folders = (self._build.layout.work / _STAGE).glob("[0-9]*")
        return sorted({int(folder.name) for folder in folders if folder.name.isdecimal()} - {self._shard})

    def _published(self, publication: Publication, shards: Sequence[int]) -> Iterator[_Source]:
        layout = self._build.layout
        for shard in shards:
            if shard >= len(publication.payloads):
                continue
            _, tokens, pairs = publication.payloads[shard]
            try:
                made = read_receipt(layout.payload(_STAGE, shard, tokens))
                receipt = read_receipt(layout.payload(STAGES[2], shard, pairs))
                if not made or not receipt or not self._fits(made) or layout.payload(_STAGE, shard, tokens).is_dir():
                    continue
                for piece in receipt.pieces:
                    yield _Pair(layout.version(publication.id), piece, receipt.keep_columns, made.engines)
            except DamagedFileError as error:  # `verify` names it; here it only costs tokenizing again
                self._build.progress.note(str(error))
