"""What worker threads run on: compiled code, cores, scratch memory and counters of time.

In: nothing but the machine. Out: leaves for the rest of the loader. Must not know: datasets, decoders.
"""
