"""A bounded folder of verified files, shared by all processes of a machine.

In: what a file must be, and what fetches it. Out: a descriptor of it. Must not know: stores, what is in a file.
"""
