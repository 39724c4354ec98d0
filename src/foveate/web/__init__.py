"""Web pages of the gateway: what fills context windows, what requests cost, and why the cache missed.

Each page is loaded from the store and rendered completely on the server. An open page is notified of changes
and loads itself again, so everything works without scripts. Each subject has a module under `pages`, whose
`load_page` returns what the template shows. Pages are read-only.
"""
