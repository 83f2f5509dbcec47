"""Conversion: a source is planned, prepared and written as shards with dataset.json; and verified.

In: a source of images or texts. Out: tar or .beton shards. Must not know: models, training.
"""
