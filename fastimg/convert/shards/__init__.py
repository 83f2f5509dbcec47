"""The shards of a plan, one at a time: written here, or by tasks on the nodes of a Ray cluster.

In: a source, a treatment, the entries of a shard. Out: its files, and a line of the journal.
Must not know: listing, planning, dataset.json.
"""
