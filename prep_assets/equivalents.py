"""Keys and flags of other tools, and what answers to them here: for people who bring a configuration along."""

_FAST_LLM = {
    "dataset.path": "use dataset.name_or_path",
    "dataset.load_from_disk": "leave it out: dataset.name_or_path takes a folder that save_to_disk wrote",
    "dataset.data_directory": "use dataset.data_files with a pattern such as 'folder/**'",
    "dataset.splits": "use dataset.split, one recipe for each split",
    "dataset.source_schema": "use dataset.field for the text column; conversations are not read",
    "dataset.num_workers": "use loading_workers",
    "dataset.documents_per_shard": "use shards for their number and tokens_per_shard for their size",
    "dataset.trust_remote_code": "leave it out: code of a dataset is never run",
    "dataset.disable_disk_space_check": "leave it out: room on the disk is always checked",
    "dataset.loss_masking_spans": "leave it out: spans are not written",
    "tokenizer.bos_token_id": "use tokenizer.bos_token with the token's text",
    "tokenizer.eod": "use tokenizer.eos_token",
    "tokenizer.max_vocab_size": "leave it out: the largest id is taken from the tokenizer",
    "tokenizer.format": "leave it out: tokenizer.path names a tokenizer.json",
    "splits": "use dataset.split, one recipe for each split; trainers cut a validation part themselves",
    "distributed": "leave it out: shards are Dagster's partitions, its runs share them out",
    "num_workers": "use loading_workers, tokenize_workers and saving_workers",
    "documents_per_shard": "use shards for their number and tokens_per_shard for their size",
    "image_patch_size": "leave it out: images are not read",
    "prepare": "leave it out, and its keys go to the top",
    "dataset_name_or_path": "use dataset.name_or_path",
    "tokenizer_path": "use tokenizer.path",
}
_MEGATRON = {
    "input": "use dataset.name_or_path",
    "json_keys": "use dataset.field",
    "output_prefix": "use output_path; the pairs are named shard_<shard>_<piece>",
    "append_eod": "use tokenizer.add_eos: true",
    "workers": "use tokenize_workers",
    "partitions": "use shards",
    "tokenizer_model": "use tokenizer.path with a tokenizer.json",
    "tokenizer_type": "leave it out: tokenizer.path names a tokenizer.json",
    "vocab_file": "use tokenizer.path with a tokenizer.json",
    "vocab_size": "leave it out: the largest id is taken from the tokenizer",
    "merge_file": "use tokenizer.path with a tokenizer.json",
    "split_sentences": "leave it out: a document is one sequence",
    "keep_newlines": "leave it out: text is never changed",
    "keep_sequential_samples": "leave it out: the source's order is always kept",
    "dataset_impl": "leave it out: pairs are always memory-mapped",
    "log_interval": "leave it out: progress shows by itself",
    "find_optimal_num_workers": "leave it out: workers are caps",
    "use_gigatoken": "use tokenizer.engine: auto",
    "lang": "leave it out: a document is one sequence",
}


def equivalent(key: str) -> str | None:
    """What answers here to a key or flag of Fast-LLM's prepare or Megatron-LM's preprocess_data; None if unknown."""
    dotted = key.lstrip("-").replace("-", "_").lower()
    name = dotted.rpartition(".")[2]
    if advice := _FAST_LLM.get(dotted) or _FAST_LLM.get(f"dataset.{name}"):
        return f"Fast-LLM's {name}: {advice}"
    if advice := _MEGATRON.get(name) or _FAST_LLM.get(name) or _FAST_LLM.get(f"tokenizer.{name}"):
        return f"{advice} (for {key})"
    return None
