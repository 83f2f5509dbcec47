"""Texts beside images: which samples have which input, and the texts as a dataset of their own.

In: a dataset of images with texts beside them. Out: the same samples as texts. Must not know: tokens, models.
"""
