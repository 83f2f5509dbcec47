"""Shards as a source: tars and .beton files, from fastimg or any other writer. Order, labels, keys and fields are kept.

In: files. Out: a Source, whose reader gives their samples. Must not know: the plan, what is written.
"""
