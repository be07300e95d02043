"""Token ids of a shard -> its `.bin`/`.idx` pairs and their sidecars."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import numpy as np
import pyarrow as pa

from prep_assets.build import Build, guarded
from prep_assets.formats.indexed_dataset import IndexedDatasetWriter
from prep_assets.formats.sidecar import Sidecar, SidecarWriter
from prep_assets.formats.token_partition import TokenizedDocuments, read_token_partition
from prep_assets.layout import piece_files, piece_prefix
from prep_assets.parallel import go_on, in_order
from prep_assets.payload import new_payload
from prep_assets.receipt import Piece, Receipt, Stage, fingerprint, write_receipt

STAGE: Stage = "memmap_shards"


def make_memmap_shards(build: Build, shards: Iterable[int]) -> Iterator[tuple[int, Receipt]]:
    """Makes the stale pairs of these shards, some at once; gives each shard's receipt, in order.

    A shard without tokens has no pair.
    """
    return in_order(lambda shard: (shard, _make(build, shard)), shards, build.threads(build.recipe.saving_workers))


def _make(build: Build, shard: int) -> Receipt:
    made = build.made(shard)[STAGE]
    if made.is_fresh and made.receipt is not None:
        return made.receipt
    tokens, upstream = build.upstream("tokenized_partitions", shard)
    begin, keep_columns = monotonic(), build.recipe.dataset.keep_columns
    assert made.made_from is not None
    with new_payload(made.make_room()) as folder:
        partition = read_token_partition(tokens, build.facts.dtype, keep_columns, upstream.content)
        pieces = _write_pieces(build, shard, folder, guarded(tokens, partition))
        receipt = Receipt(
            stage=STAGE,
            shard=shard,
            made_from=made.made_from,
            content=fingerprint(pieces=[piece.model_dump(exclude={"docs_size"}) for piece in pieces]),
            documents=sum(piece.documents for piece in pieces),
            tokens=sum(piece.tokens for piece in pieces),
            bytes=sum(piece.bin_size + piece.idx_size + piece.docs_size for piece in pieces),
            with_special_text=upstream.with_special_text,
            with_end=upstream.with_end,
            engines=upstream.engines,
            seconds=monotonic() - begin,
            pieces=pieces,
        )
        write_receipt(folder, receipt)
    return receipt


def _write_pieces(build: Build, shard: int, folder: Path, partition: Iterator[TokenizedDocuments]) -> tuple[Piece, ...]:
    pieces: list[_PieceWriter] = []
    limit = build.recipe.tokens_per_shard
    with ExitStack() as open_piece:
        for batch in partition:
            go_on()
            rest = _without_empty(batch)
            while len(rest.lengths):
                fitting = _fitting(rest, limit - pieces[-1].tokens) if pieces else 0
                if not fitting:  # the next document begins a piece, also where it is longer than one may be
                    open_piece.close()
                    pieces.append(
                        open_piece.enter_context(_PieceWriter(build, folder, piece_prefix(shard, len(pieces))))
                    )
                    fitting = max(1, _fitting(rest, limit))
                pieces[-1].write(_slice(rest, 0, fitting))
                rest = _slice(rest, fitting, len(rest.lengths))
            build.progress.advance(STAGE, shard, len(batch.lengths), len(batch.ids))
    return tuple(piece.piece for piece in pieces)


def _fitting(batch: TokenizedDocuments, room: int) -> int:
    """How many of the first documents fit into so many tokens."""
    return int(np.searchsorted(np.cumsum(batch.lengths), room, side="right"))


class _PieceWriter:
    """A pair and its sidecar, written side by side."""

    piece: Piece

    def __init__(self, build: Build, folder: Path, prefix: str) -> None:
        bin_name, _, docs_name = piece_files(prefix)
        self._prefix = prefix
        self._pair = IndexedDatasetWriter(folder / bin_name.removesuffix(".bin"), build.dtype)
        self._sidecar = SidecarWriter(folder / docs_name, build.recipe.dataset.keep_columns)
        self.tokens = 0

    def __enter__(self) -> "_PieceWriter":
        self._files = ExitStack()
        self._files.enter_context(self._pair)
        self._files.enter_context(self._sidecar)
        return self

    def write(self, part: TokenizedDocuments) -> None:
        self._pair.write(part.lengths, part.ids)
        self._sidecar.write(Sidecar(part.digests, part.lengths.astype(np.int32), part.characters, part.kept))
        self.tokens += len(part.ids)

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)  # type: ignore[arg-type]
        if error[0] is None:
            self.piece = Piece(
                prefix=self._prefix,
                **self._pair.written._asdict(),
                docs_size=self._sidecar.size,
                docs_digest=self._sidecar.digest,
            )


def _without_empty(batch: TokenizedDocuments) -> TokenizedDocuments:
    """The documents that have tokens; their ids need no copy, as the others have none."""
    present = np.flatnonzero(batch.lengths)
    kept = [column.take(pa.array(present)) for column in batch.kept]
    return TokenizedDocuments(
        batch.digests[present], batch.lengths[present], batch.ids, batch.characters[present], kept
    )


def _slice(batch: TokenizedDocuments, begin: int, end: int) -> TokenizedDocuments:
    first, last = int(batch.lengths[:begin].sum()), int(batch.lengths[:end].sum())
    kept = [column[begin:end] for column in batch.kept]
    return TokenizedDocuments(
        batch.digests[begin:end], batch.lengths[begin:end], batch.ids[first:last], batch.characters[begin:end], kept
    )
