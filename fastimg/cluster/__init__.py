"""A Ray cluster: joining it, and what all of its nodes must see. Ray is imported only where one is asked for.

In: an address, folders.
Out: Ray, connected; sentences about nodes that lack something.
Must not know: what runs there.
"""
