"""Recipe: what one dataset is. Checked as a whole when it is made, and never changed after."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PositiveInt,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from prep_assets.equivalents import equivalent
from prep_assets.errors import RecipeError

EXAMPLE = Path(__file__).parent / "example" / "recipe.yaml"
RECIPE_VARIABLE = "PREP_ASSETS_RECIPE"
OUTPUT_VARIABLE = "PREP_ASSETS_OUTPUT"

DataType = Literal["auto", "uint8", "int8", "int16", "uint16", "int32", "int64"]
Text = Annotated[str, StringConstraints(min_length=1)]


def _expandable(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path holds no NUL")
    try:
        Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return path


PathText = Annotated[Text, AfterValidator(_expandable)]


def _distinct(names: list[str]) -> list[str]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"expected each column once, not {', '.join(twice)} twice")
    return names


class _Part(BaseModel, frozen=True, extra="forbid", strict=True):
    pass


class Refresh(_Part):
    """When Dagster looks for changes by itself."""

    sensor: bool = Field(False, description="look at the source every minute and refresh what changed")
    cron: Text | None = Field(None, description="refresh at these times, as cron writes them")


class Dataset(_Part):
    """Where text comes from, and how it is cut into shards."""

    name_or_path: PathText = Field(description="a hub dataset, a folder, a file or a glob")
    config_name: Text | None = Field(None, description="hub: the configuration")
    revision: Text | None = Field(None, description="hub: branch, tag or commit")
    split: Text | None = Field(None, description="which split; none named means `train`")
    data_files: Text | list[Text] | None = Field(None, description="patterns below `name_or_path`")
    field: Text = Field("text", description="the column that holds the text; `a.b` is b inside a")
    data_type: DataType = Field("auto", description="of the tokens in `.bin`; auto: uint16, or int32 where ids need it")
    shard_by: Literal["document", "file"] = Field("document", description="what decides a document's shard")
    on_bad_row: Literal["error", "skip"] = Field("error", description="skip leaves bad rows out and lists them")
    keep_columns: Annotated[list[Text], AfterValidator(_distinct)] = Field(
        [], description="columns carried into the sidecars, as text"
    )
    exclude: PathText | None = Field(
        None, description="a file of documents to leave out: a digest, or a key, on each line"
    )
    exclude_column: Text | None = Field(None, description="the column whose values `exclude` lists, instead of digests")

    @field_validator("exclude_column")
    @classmethod
    def _with_a_list(cls, column: str | None, info: ValidationInfo) -> str | None:
        if column is not None and info.data.get("exclude", "faulty itself") is None:
            raise ValueError("expected dataset.exclude too, the file that lists its values")
        return column


class TokenizerOptions(_Part):
    """Which tokenizer, and which special tokens stand at a document's ends."""

    path: PathText = Field(description="a `tokenizer.json`, a folder that holds one, or a hub repository")
    add_bos: bool | None = Field(None, description="null: as the tokenizer's post-processor does; true: exactly one")
    add_eos: bool | None = Field(None, description="the same for the end token")
    bos_token: Text | None = Field(None, description="default: as `tokenizer_config.json` beside it says")
    eos_token: Text | None = Field(None, description="default: as `tokenizer_config.json` beside it says")
    special_tokens_in_text: Literal["parse", "text", "error"] = Field(
        "parse", description="the text of a special token inside a document: its id, plain text, or an error"
    )
    engine: Literal["auto", "tokenizers", "gigatoken", "tuetoken"] = Field(
        "auto", description="what encodes; speed alone"
    )


class Recipe(_Part):
    """One dataset. Paths are relative to the recipe's folder; workers are caps."""

    output_path: PathText = Field(description="where versions are published")
    dataset: Dataset
    tokenizer: TokenizerOptions
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+$")] | None = Field(
        None, description="prefix of the asset keys, where several recipes share one Dagster home"
    )
    shards: PositiveInt | Literal["auto"] = Field(
        1, description="number of shards; auto: by size, fixed when first made"
    )
    tokens_per_shard: PositiveInt = Field(1_000_000_000, description="most tokens in one `.bin`")
    loading_workers: PositiveInt = Field(4, description="most files read at once")
    tokenize_workers: PositiveInt = Field(4, description="most threads that tokenize")
    saving_workers: PositiveInt = Field(4, description="most shards written at once")
    work_path: PathText | None = Field(None, description="intermediates; default `<output_path>/.prep_assets`")
    keep: Literal["all", "tokens", "none"] = Field("all", description="which intermediates stay")
    keep_versions: Annotated[int, Field(ge=2)] = Field(3, description="how many published versions stay")
    refresh: Refresh = Refresh()

    _base: Path = PrivateAttr(default_factory=Path.cwd)
    _output_base: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="before")
    @classmethod
    def _accept_fast_llm_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("remove_downloads"), bool):
            keep = {"keep": "none"} if data["remove_downloads"] else {}
            data = keep | {key: value for key, value in data.items() if key != "remove_downloads"}
        return data

    def model_post_init(self, context: Any) -> None:
        """Takes the folders that relative paths start from out of the validation context."""
        if context:
            self._base, self._output_base = context["base"], context["output_base"]

    @property
    def base(self) -> Path:
        """The folder that relative paths of the source and the tokenizer start from."""
        return self._base

    @property
    def num_shards(self) -> int:
        """The number of shards, which `auto` must have become before it is asked for (workspace.settle_shards)."""
        assert isinstance(self.shards, int), "shards: auto was not settled"
        return self.shards

    @property
    def exclude_path(self) -> Path | None:
        """The list of documents to leave out, absolute."""
        listed = self.dataset.exclude
        return None if listed is None else self._base.absolute() / Path(listed).expanduser()

    @property
    def output(self) -> Path:
        """Where versions are published, absolute."""
        return self._absolute(os.environ.get(OUTPUT_VARIABLE) or self.output_path)

    @property
    def work(self) -> Path:
        """Where everything else lies, absolute."""
        return self._absolute(self.work_path) if self.work_path else self.output / ".prep_assets"

    def _absolute(self, path: str) -> Path:
        return Path(os.path.abspath(self._output_base / Path(path).expanduser()))  # noqa: PTH100  (no symlink followed)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Plain YAML values only; a key written twice is an error, not a silent loss of the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int) and key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} stands here twice", problem_mark=key_node.start_mark
                )
            if isinstance(key, str | int):
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_recipe(path: Path | str) -> Recipe:
    """The recipe in a YAML file.

    Raises RecipeError with a line for each fault: the key, what was found, what is allowed.
    """
    path = Path(path)
    try:
        data = yaml.load(path.read_bytes(), _UniqueKeyLoader)  # a SafeLoader: plain values only
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}); name an existing recipe") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RecipeError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    return parse_recipe(data, str(path), path.parent.absolute())


def parse_recipe(data: object, origin: str, base: Path) -> Recipe:
    """The recipe that plain values describe; origin: what messages call it; base: where relative paths start.

    Raises RecipeError as load_recipe does.
    """
    if not isinstance(data, dict):
        raise RecipeError(f"{origin}: found {_shown(data)}; expected keys (output_path, dataset, tokenizer) and values")
    # The packaged example must not write into the installed package, but where its user stands.
    output_base = Path.cwd() if base == EXAMPLE.parent else base
    try:
        return Recipe.model_validate(data, context={"base": base, "output_base": output_base})
    except ValidationError as error:
        faults: dict[str, list[str]] = {}
        for fault in error.errors():  # a union reports one fault for each of its members
            found, expected = _fault(fault)
            faults.setdefault(found, []).append(expected)
        lines = [f"{origin}: {found}; {' or '.join(expected)}" for found, expected in faults.items()]
        raise RecipeError("\n".join(lines).replace(" or expected ", " or ")) from error


def _fault(fault: ErrorDetails) -> tuple[str, str]:
    """The key with what was found, and what is allowed."""
    model: type[BaseModel] | None = Recipe
    keys: list[str] = []
    for part in fault["loc"]:  # a union appends the name of its member to the place: not a key of the recipe
        if isinstance(part, str) and (model is None or part not in model.model_fields):
            break
        keys.append(str(part))
        annotation = model.model_fields[part].annotation if model and isinstance(part, str) else None
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    key = ".".join(keys)
    found = _shown(fault["input"])
    match fault["type"]:
        case "extra_forbidden":
            return _unknown_key(".".join(map(str, fault["loc"])))
        case "missing":
            return f"{key}: missing", f"expected: {keys_with_descriptions()[key]}"
        case "model_type" | "dict_type":
            return f"{key}: found {found}", "expected keys and values"
        case "string_pattern_mismatch":
            return f"{key}: found {found}", "expected letters, digits and underscores"
        case "string_too_short":
            return f"{key}: found {found}", "expected some text"
        case "value_error":
            return f"{key}: found {found}", fault["msg"].removeprefix("Value error, ")
        case _:
            return f"{key}: found {found}", fault["msg"].replace("Input should be", "expected")


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text[:77]}..." if len(text) > 80 else text


def keys_with_descriptions(model: type[BaseModel] = Recipe, prefix: str = "") -> dict[str, str]:
    """Every key of a recipe, dotted, with its description."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found[prefix + name] = (annotation.__doc__ or "").rstrip(".")
            found |= keys_with_descriptions(annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field.description or ""
    return found


def _unknown_key(key: str) -> tuple[str, str]:
    if advice := equivalent(key):
        return f"{key}: not a key of ours", advice
    known = list(keys_with_descriptions())
    section, _, name = key.rpartition(".")
    near = [k for k in known if k.rpartition(".")[2] == name] or get_close_matches(key, known, 3, 0.75)
    near = near or get_close_matches(name, [k.rpartition(".")[2] for k in known], 1, 0.7)
    allowed = [k.removeprefix(f"{section}.") for k in known if k.rpartition(".")[0] == section]
    return f"{key}: unknown key", f"did you mean {' or '.join(near)}?" if near else f"allowed: {', '.join(allowed)}"
