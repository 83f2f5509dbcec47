"""Datasets of the Hugging Face hub, `hf://datasets/USER/NAME[:config][@revision]`: parquet files, read over HTTP.

In: a reference. Out: its parquet files by split, read by ranges of bytes. Must not know: what is written.
"""
