"""What worker threads need: compiled code, cores, scratch memory and timing.

In: only the machine. Out: building blocks for the rest of the loader. Must not know: datasets, decoders.
"""
