"""Folders of images or texts: each file is a sample, or is ignored for a reason.

In: a folder. Out: splits, classes and files. Must not know: containers, decoding.
"""
