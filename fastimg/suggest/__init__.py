"""A configuration for some data on this machine: what is known and measured, what follows, and why.

In: a dataset, a time. Out: a YAML file with a reason for every choice, which `train --config` runs.
Must not know: trials of a search.
"""
