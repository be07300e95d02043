"""Where each file lies; computes paths, touches none."""

from dataclasses import dataclass
from pathlib import Path

MANIFEST = "fast_llm_dataset.json"
FAST_LLM_CONFIG = "fast_llm_config.yaml"
MEGATRON_DATA_ARGS = "megatron_data_args.txt"
VERSION = "version.json"


def partition_name(shard: int) -> str:
    """A shard as Dagster's partition key and as a folder: 7 -> "00007"."""
    return f"{shard:05d}"


def piece_prefix(shard: int, piece: int) -> str:
    """The name of a pair without its suffix: no dot and no space in it, as the trainers want."""
    return f"shard_{shard}_{piece}"


def piece_files(prefix: str) -> tuple[str, str, str]:
    """The three files of a piece: tokens, index, sidecar."""
    return f"{prefix}.bin", f"{prefix}.idx", f"{prefix}.docs.parquet"


@dataclass(frozen=True)
class Layout:
    """The paths of one dataset; output: what is published, work: everything else."""

    output: Path
    work: Path

    def payload(self, stage: str, shard: int, inputs: str) -> Path:
        return self.work / stage / partition_name(shard) / inputs

    def lock(self, name: str) -> Path:
        return self.work / "locks" / f"{name}.lock"

    @property
    def owner(self) -> Path:
        return self.work / "owner.json"

    @property
    def index(self) -> Path:
        return self.work / "index"

    @property
    def downloads(self) -> Path:
        return self.work / "downloads"

    @property
    def dagster_home(self) -> Path:
        return self.work / "dagster"

    @property
    def pin(self) -> Path:
        return self.work / "pin"

    @property
    def publications(self) -> Path:
        return self.work / "publications.json"

    @property
    def tokenizer(self) -> Path:
        return self.work / "tokenizer.json"

    @property
    def differences(self) -> Path:
        return self.work / "engines.json"

    def version(self, identifier: str) -> Path:
        return self.output / "versions" / identifier

    @property
    def latest(self) -> Path:
        return self.output / "latest"
