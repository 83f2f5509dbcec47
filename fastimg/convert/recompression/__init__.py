"""`convert --recompress`: images that are no JPEGs, as JPEGs of a quality, or without loss in fewer bytes.

In: an encoded image. Out: another, or why it is left as it is, and what that changed. Must not know: sources, shards.
"""
