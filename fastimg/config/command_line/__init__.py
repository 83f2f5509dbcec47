"""In: a command's dataclass and the words after `fastimg COMMAND`. Out: the values of its fields; help; completion.

Must not know: what the commands do, or how settings of files and recipes are combined with these.
"""
