"""`tokenizer.json`: its identity, its largest id, what stands at a document's ends, and the engine."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers

from prep_assets.engines import Encoded, Engine
from prep_assets.engines.battery import BATTERY
from prep_assets.engines.choice import Loaded, choose_engine
from prep_assets.engines.reference import ReferenceEngine
from prep_assets.engines.routed import literals
from prep_assets.errors import TokenizerError
from prep_assets.formats.indexed_dataset import token_dtype
from prep_assets.receipt import fingerprint

FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"

SpecialText = Literal["parse", "text", "error"]


@dataclass(frozen=True)
class Ends:
    """What stands around a document's own ids. A sole id is left out where the text itself gave it: never doubled."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    add_bos: bool | None
    add_eos: bool | None


class Tokenizer:
    """One `tokenizer.json` with a recipe's options for special tokens."""

    def __init__(
        self,
        path: Path,
        *,
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        special_text: SpecialText = "parse",
        threads: int = 1,
    ) -> None:
        """path: the file. Truncation and padding saved in it are switched off.

        Raises TokenizerError, naming the file and the token, where the options ask for what it does not have.
        """
        self.path, self.special_text, self._threads = path, special_text, threads
        try:
            self._text = path.read_text(encoding="utf-8")
            self._meaning = json.loads(self._text)
            self._reference = tokenizers.Tokenizer.from_str(self._text)
        except FileNotFoundError as error:
            raise TokenizerError(
                f"{path}: missing; tokenizer.path names a tokenizer.json or a folder with one"
            ) from error
        except OSError:
            raise
        except Exception as error:  # the library raises bare Exceptions
            raise TokenizerError(
                f"{path}: not a tokenizer.json that tokenizers {tokenizers.__version__} reads: {error}"
            ) from error
        self._reference.no_truncation()
        self._reference.no_padding()
        self._reference.encode_special_tokens = special_text == "text"
        self.bos_id = self._special_id("bos_token", bos_token, needed=bool(add_bos))
        self.eos_id = self._special_id("eos_token", eos_token, needed=bool(add_eos))
        self.ends = self._ends(add_bos, add_eos)
        vocabulary = self._reference.get_vocab(with_added_tokens=True).values()
        # A post-processor may give ids that no token of the vocabulary has.
        self.largest_id = max([*vocabulary, *self.ends.prefix, *self.ends.suffix], default=0)
        self.dtype = token_dtype(self.largest_id)
        self.reference: Engine = ReferenceEngine(self._reference, threads)

    @cached_property
    def identity(self) -> str:
        """Digest of all that decides ids: the file's meaning, the options, and the ids of a fixed battery of strings.

        Key order, white space, saved truncation and padding do not count; a library upgrade that changes ids does.
        """
        meaning = {key: value for key, value in self._meaning.items() if key not in ("truncation", "padding")}
        ids = [self._reference.encode(text, add_special_tokens=False).ids for text in BATTERY]
        return fingerprint(
            meaning=meaning,
            prefix=self.ends.prefix,
            suffix=self.ends.suffix,
            add_bos=self.ends.add_bos,
            add_eos=self.ends.add_eos,
            # An error ends the run, so its ids are those of parse.
            special_text="text" if self.special_text == "text" else "parse",
            battery=ids,
        )

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """Text of every special token, by id."""
        added = self._reference.get_added_tokens_decoder()
        return {identifier: token.content for identifier, token in added.items() if token.special}

    def name(self, identifier: int) -> str:
        """The token of an id as the vocabulary writes it."""
        return self._reference.id_to_token(identifier) or f"id {identifier}"

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return self._reference.decode(list(ids), skip_special_tokens=True)

    def choose_engine(self, wanted: str, disproved: Collection[str] = ()) -> Engine:
        """The engine to encode with; see engines.choice.choose_engine."""
        text = self._text
        if self._meaning.get("truncation") or self._meaning.get("padding"):
            text = json.dumps({**self._meaning, "truncation": None, "padding": None})
        added = self._reference.get_added_tokens_decoder().values()
        literal = [token.content for token in added if not (token.special and self.special_text == "text")]
        return choose_engine(
            wanted, Loaded(self.path, text, self._meaning, literal, self._threads), self.reference, disproved
        )

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        """Tokens of each text for itself, of self.dtype: `tokenizers.Tokenizer.encode`'s, with BOS and EOS as asked.

        A text without ids of its own gets none at all.
        """
        return self.with_ends(self.reference.encode(texts))

    def holds_special_text(self, texts: pa.LargeStringArray) -> npt.NDArray[np.bool_]:
        """Whether each text holds that of a special token; (num_texts,)."""
        if not self.special_tokens:
            return np.zeros(len(texts), bool)
        holds: npt.NDArray[np.bool_] = pc.match_substring_regex(texts, literals(self.special_tokens.values())).to_numpy(
            zero_copy_only=False
        )
        return holds

    def with_ends(self, encoded: Encoded) -> Encoded:
        """What an engine gave, with BOS and EOS as asked, of self.dtype."""
        lengths, ids = encoded
        ends = np.cumsum(lengths)
        begins = ends - lengths
        present = lengths > 0
        prefix, suffix = (np.array(part, np.int64) for part in (self.ends.prefix, self.ends.suffix))
        before, after = present * len(prefix), present * len(suffix)
        if self.ends.add_bos and len(prefix) == 1:
            before[present] -= ids[begins[present]] == prefix[0]
        if self.ends.add_eos and len(suffix) == 1:
            after[present] -= ids[ends[present] - 1] == suffix[0]
        total = before + lengths + after
        stops = np.cumsum(total)
        out = np.empty(int(total.sum()), self.dtype)
        own = np.ones(len(out), bool)  # which places the document's own ids take
        for part, starts in ((prefix, (stops - total)[before > 0]), (suffix, (stops - after)[after > 0])):
            for at, identifier in enumerate(part.tolist()):
                out[starts + at] = identifier
                own[starts + at] = False
        assert not len(ids) or ids.max() <= self.largest_id
        out[own] = ids
        return Encoded(total, out)

    def _special_id(self, option: str, named: str | None, *, needed: bool) -> int | None:
        token = named or self._configured(option)
        identifier = None if token is None else self._reference.token_to_id(token)
        if identifier is None and (needed or named):
            what = "none is named" if token is None else f"{token!r} is not in its vocabulary"
            raise TokenizerError(
                f"{self.path}: tokenizer.{option}: {what}; name a token of this tokenizer in the recipe"
                f" (or in a {CONFIG_FILE} beside it)"
            )
        return identifier

    def _configured(self, option: str) -> str | None:
        path = self.path.with_name(CONFIG_FILE)
        try:
            value = json.loads(path.read_text(encoding="utf-8")).get(option)
        except FileNotFoundError:
            return None
        except (ValueError, AttributeError) as error:
            raise TokenizerError(f"{path}: not a JSON object: {error}") from error
        content = value.get("content") if isinstance(value, dict) else value
        return content if isinstance(content, str) else None

    def _ends(self, add_bos: bool | None, add_eos: bool | None) -> Ends:
        prefix, suffix = self._post_processor() if add_bos is not False or add_eos is not False else ((), ())
        if add_bos:
            assert self.bos_id is not None
            prefix = prefix if self.bos_id in prefix else (self.bos_id, *prefix)
        if add_eos:
            assert self.eos_id is not None
            suffix = suffix if self.eos_id in suffix else (*suffix, self.eos_id)
        return Ends(() if add_bos is False else prefix, () if add_eos is False else suffix, add_bos, add_eos)

    def _post_processor(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the tokenizer's post-processor puts before and after a text's own."""
        pairs = [
            (self._reference.encode(text, add_special_tokens=False).ids, self._reference.encode(text).ids)
            for text in BATTERY
        ]
        own, whole = next(((own, whole) for own, whole in pairs if own), ([], []))
        for begin in range(len(whole) - len(own) + 1):
            prefix, suffix = whole[:begin], whole[begin + len(own) :]
            if all(whole == [*prefix, *own, *suffix] for own, whole in pairs if own):
                return tuple(prefix), tuple(suffix)
        raise TokenizerError(
            f"{self.path}: its post-processor does more than put ids before and after a text's own;"
            " set tokenizer.add_bos and tokenizer.add_eos to true or false"
        )


def locate_tokenizer(path: str, base: Path, downloads: Path) -> Path:
    """The `tokenizer.json` that a recipe's tokenizer.path names: a file, a folder with one, or a hub repository."""
    local = base / Path(path).expanduser()
    if local.is_dir():
        return local / FILE
    if local.exists() or Path(path).is_absolute() or path.startswith((".", "~")) or path.endswith(".json"):
        return local
    from prep_assets.sources import hub  # importing its client takes a second

    return hub.fetch_tokenizer(path, revision=None, downloads=downloads) / FILE
