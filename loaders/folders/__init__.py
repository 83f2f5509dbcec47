"""Folders of images or texts: every file in them is a sample, or left out for a reason.

In: a folder. Out: splits, classes and files. Must not know: containers, decoding.
"""
