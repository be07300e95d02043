"""datatrove as its users run it, in its own environment: datatrove_run.py STEP SOURCE OUTPUT TOKENIZER END WORKERS"""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer, MegatronDocumentTokenizer

if __name__ == "__main__":
    step, source, output, tokenizer, end, workers = sys.argv[1:]
    options = {"save_filename": "x", "tokenizer_name_or_path": tokenizer, "eos_token": end}
    if step == "megatron":
        writer = MegatronDocumentTokenizer(output, **options)
    else:
        writer = DocumentTokenizer(output, shuffle_documents=False, **options)
    executor = LocalPipelineExecutor(
        [ParquetReader(source), writer], tasks=int(workers), workers=int(workers), logging_dir=f"{output}/logs"
    )
    executor.run()
