"""What a table means where it does not say so: columns of 0 and 1, and the files that almost have its names.

In: rows and paths. Out: columns, names and sentences. Must not know: what is read from the table.
"""
