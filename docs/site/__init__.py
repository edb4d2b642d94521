"""The documentation site: the pages of ``docs`` and a reference generated from code, built by ``make docs``.

`stage` puts all pages and the configuration into one folder, Zensical turns them into HTML with strict
links, and `checks` finds links that lead nowhere and anything that a page loads from another address.
"""
