"""Where text comes from: local files and the Hugging Face hub, file by file, as record batches of documents."""
