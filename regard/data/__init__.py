"""Data: from files to batches.

text     lines of UTF-8 text, read strictly           pairs    parallel files, aligned by line
tables   .tsv and .jsonl with named fields            shards   token ids on disk, more than memory holds
tokens   text to ids and back                         batch    which samples make step n, and their tensors
segments running text as streams whose rows go on from batch to batch
"""
