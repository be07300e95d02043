"""Text and a tokenizer into memory-mapped token shards, as Dagster assets."""

__version__ = "0.1.0"
