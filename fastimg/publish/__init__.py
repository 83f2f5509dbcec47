"""Runs for others: a checkpoint as a repository of the Hugging Face hub.

In: a run. Out: files, and a commit that has them. Must not know: how a run is trained.
"""
