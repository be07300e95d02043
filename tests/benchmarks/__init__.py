"""What prep_assets costs beside its peers: `python -m tests.benchmarks --help`."""
