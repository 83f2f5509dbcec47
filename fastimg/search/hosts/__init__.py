"""Where the processes of a search run: on this machine, or on the nodes of a Ray cluster.

In: devices, or an address and what a trial needs.
Out: processes, each with a connection.
Must not know: what a trial is, and what is searched.
"""
