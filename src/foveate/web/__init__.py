"""The page at the gateway's root: what fills windows, what it costs, why the cache broke.

A page is looked up in the store and rendered here, whole; a browser that stays on it is told when something has
changed, and asks again. So whatever can be seen can be seen without a script, and there is one way to make it.
A module a page: `look` finds what its template shows. All of it can only be read.
"""
