"""In: the text of a flag, such as 5ep, 0/5 or 160:192. Out: the value that it stands for, or a usage error.

Must not know: which flags there are.
"""
