"""Who is measured: ours, its peers as their users run them, the bare loops; how each is set up, run and read back."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.benchmarks.measure import empty
from tests.benchmarks.tokens import Documents, read_datatrove, read_dolma, read_pairs

REPOSITORY = Path(__file__).parents[2]
SHARDS = 8  # of ours; where it says so, one
STAGES = "import sys, prep_assets.recipe, tests.pipeline as it; it.refresh(prep_assets.recipe.load_recipe(sys.argv[1]))"

ENVIRONMENTS = {
    "loops": "tokenizers==0.23.3 numpy pyarrow awkward gigatoken==0.10.0 tuetoken==0.1.3",
    "datatrove": "datatrove==0.10.1 datasets transformers tokenizers==0.23.3 orjson pyarrow",
    "dolma": "dolma==1.2.1",
    "megatron": "megatron-core==0.16.1 tokenizers==0.23.3 transformers awkward nltk pyarrow gigatoken==0.10.0",
    "fast-llm": "torch datasets<4 transformers<5 pyyaml requests tqdm numpy",
    "pictures": "matplotlib",
}
CHECKOUTS = {  # name of the checkout -> repository and commit
    "fast-llm": ("https://github.com/ServiceNow/Fast-LLM", "2905d38c"),
    "megatron": ("https://github.com/NVIDIA/Megatron-LM", "d98e8a64dd"),
}
# That commit of Megatron-LM wants Python 3.12's typing.
TYPING_SHIM = """import typing
import typing_extensions
typing.override = getattr(typing, "override", typing_extensions.override)
"""


@dataclass(frozen=True)
class Setting:
    """What all contenders of one table share."""

    work: Path
    corpus: str
    tokenizer: str
    workers: int = 2

    @property
    def data(self) -> Path:
        return self.work / "data" / self.corpus

    @property
    def tokenizer_file(self) -> Path:
        return self.work / "tok" / self.tokenizer / "tokenizer.json"

    @property
    def end(self) -> tuple[str, int]:
        """The token after each document, as tokenizer_config.json names it, and its id."""
        token = json.loads(self.tokenizer_file.with_name("tokenizer_config.json").read_bytes())["eos_token"]
        token = token if isinstance(token, str) else token["content"]
        added = json.loads(self.tokenizer_file.read_bytes())["added_tokens"]
        return token, next(entry["id"] for entry in added if entry["content"] == token)

    def python(self, environment: str) -> str:
        return str(self.work / "venvs" / environment / "bin" / "python")

    def checkout(self, name: str) -> Path:
        return self.work / "src" / name


@dataclass(frozen=True)
class Run:
    """A command, ready to be measured."""

    command: list[str]
    cwd: Path = REPOSITORY
    environment: dict[str, str] = field(default_factory=dict)


Prepare = Callable[[Setting, Path, Path], Run]  # setting, input, empty output folder


@dataclass(frozen=True)
class Contender:
    """reads: what of the corpus's folder it is given, the form that it reads best; prepare: makes it ready to run.

    note: why its tokens are known to differ.
    """

    label: str
    reads: str
    prepare: Prepare
    read: Callable[[Path], Iterator[Documents]] = read_pairs
    note: str = ""


def set_up(work: Path) -> None:
    """Virtual environments and checkouts, those that are not there yet."""
    for name, packages in ENVIRONMENTS.items():
        folder = work / "venvs" / name
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([folder / "bin" / "pip", "install", "--quiet", *packages.split()], check=True)
            (folder / "complete").touch()
    for name, (repository, commit) in CHECKOUTS.items():
        folder = work / "src" / name
        if not folder.exists():
            subprocess.run(["git", "clone", "--quiet", "--no-checkout", repository, folder], check=True)
            subprocess.run(["git", "-C", folder, "checkout", "--quiet", commit], check=True)
    shim = work / "src" / "shim" / "sitecustomize.py"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(TYPING_SHIM)


def _ours(engine: str, *, shards: int = SHARDS, with_dagster: bool = True) -> Prepare:
    def prepare(setting: Setting, source: Path, output: Path) -> Run:
        recipe = output / "recipe.yaml"
        write_recipe(recipe, setting, source, shards=shards, engine=engine)
        if with_dagster:
            return Run([str(Path(sys.executable).with_name("prep-assets")), "prepare", "--config", str(recipe)])
        return Run([sys.executable, "-c", STAGES, str(recipe)])

    return prepare


def write_recipe(path: Path, setting: Setting, source: Path, *, shards: int, engine: str) -> None:
    """A recipe whose output is the folder `published` beside it."""
    tokenizer = {"path": str(setting.tokenizer_file), "add_bos": False, "add_eos": True, "eos_token": setting.end[0]}
    recipe = {
        "output_path": "published",
        "shards": shards,
        "dataset": {"name_or_path": str(source)},
        "tokenizer": tokenizer | {"engine": engine},
    } | {f"{kind}_workers": setting.workers for kind in ("loading", "tokenize", "saving")}
    path.write_text(yaml.safe_dump(recipe))


def _fast_llm(setting: Setting, source: Path, output: Path) -> Run:
    recipe = {
        "output_path": str(output),
        "dataset": {"path": str(source)},
        "tokenizer": {"path": str(setting.tokenizer_file)},
    } | {f"{kind}_workers": setting.workers for kind in ("loading", "tokenize", "saving")}
    config = output / "config.yaml"
    config.write_text(yaml.safe_dump(recipe))
    command = [setting.python("fast-llm"), "-m", "fast_llm.tools.cli", "prepare", "gpt_memmap", "--config", str(config)]
    return Run(command, setting.checkout("fast-llm"), {"HF_HOME": str(output / "cache")})


def _megatron(tool: str, *options: str) -> Prepare:
    def prepare(setting: Setting, source: Path, output: Path) -> Run:
        folder = setting.checkout("megatron")
        command = [setting.python("megatron"), f"tools/{tool}", "--input", str(source), "--output-prefix"]
        command += [str(output / "x"), "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model"]
        command += [str(setting.tokenizer_file.parent), "--append-eod", *options]
        if tool == "preprocess_data.py":
            command += ["--workers", str(setting.workers)]
        return Run(command, folder, {"PYTHONPATH": f"{setting.checkout('shim')}:{folder}"})

    return prepare


def _datatrove(step: str) -> Prepare:
    def prepare(setting: Setting, source: Path, output: Path) -> Run:
        script = [setting.python("datatrove"), str(Path(__file__).with_name("datatrove_run.py")), step, str(source)]
        return Run([*script, str(output), str(setting.tokenizer_file), setting.end[0], str(setting.workers)])

    return prepare


def _dolma(setting: Setting, source: Path, output: Path) -> Run:
    end = str(setting.end[1])
    command = [setting.python("dolma").replace("/python", "/dolma"), "tokens", "--documents", f"{source}/*.gz"]
    command += ["--destination", str(output), "--tokenizer.name_or_path", str(setting.tokenizer_file)]
    command += ["--tokenizer.eos_token_id", end, "--tokenizer.pad_token_id", end]
    return Run([*command, "--processes", str(setting.workers), "--dtype", "uint32"])


def _loop(library: str) -> Prepare:
    def prepare(setting: Setting, source: Path, output: Path) -> Run:
        script = [setting.python("loops"), str(Path(__file__).with_name("loops.py")), library, str(source)]
        arguments = [str(setting.tokenizer_file), str(output / "x"), str(setting.end[1]), str(setting.workers)]
        return Run(script + arguments)

    return prepare


LOOPS = {
    f"loop-{library}": Contender(f"bare loop: {library}", "single/*.parquet", _loop(library))
    for library in ("tokenizers", "gigatoken", "tuetoken")
}
CONTENDERS = {
    "ours": Contender("**prep-assets prepare**, engine auto", "parquet", _ours("auto")),
    "ours-tokenizers": Contender("prep-assets prepare, engine tokenizers", "parquet", _ours("tokenizers")),
    "ours-one": Contender("prep-assets prepare, one shard", "parquet", _ours("auto", shards=1)),
    "stages": Contender("our stages, no Dagster, engine auto", "parquet", _ours("auto", with_dagster=False)),
    "stages-tokenizers": Contender(
        "our stages, no Dagster, engine tokenizers", "parquet", _ours("tokenizers", with_dagster=False)
    ),
    "fast-llm": Contender("Fast-LLM prepare gpt_memmap", "parquet", _fast_llm),
    "megatron": Contender("Megatron-LM preprocess_data.py", "single/*.jsonl", _megatron("preprocess_data.py")),
    "megatron-fast": Contender(
        "Megatron-LM preprocess_data_fast.py (gigatoken)",
        "single/*.jsonl",
        _megatron("preprocess_data_fast.py", "--use-gigatoken"),
    ),
    "datatrove": Contender("datatrove DocumentTokenizer", "parquet", _datatrove("plain"), read_datatrove),
    "datatrove-megatron": Contender("datatrove, Megatron writer", "parquet", _datatrove("megatron")),
    "dolma": Contender("dolma tokens", "gz", _dolma, read_dolma, note="strips each document's ends"),
} | LOOPS


def ready(contender: Contender, setting: Setting, output: Path) -> tuple[Path, Run]:
    """The input of a contender, and its run into the folder, emptied before."""
    [source] = setting.data.glob(contender.reads)
    return source, contender.prepare(setting, source, empty(output))
