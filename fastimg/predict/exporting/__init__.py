"""What `export` is made of: the exported interface, graphs that are run, the check against the checkpoint, delivery.

In: a loaded model. Out: files, and how far their outputs agree. Must not know: flags, how a run is resumed.
"""
