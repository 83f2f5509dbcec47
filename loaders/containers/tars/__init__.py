"""Tar shards.

In: tars of any writer. Out: members, samples, records; shards with their indexes. Must not know: .beton, batches.
"""
