"""The dashboard: pages for people, rendered on the server from the same use cases as the API's answers.

Pages hold no state: everything that a page shows is in its address, so any server process can answer any
request. They work without scripts; the modules in `static` only refresh parts of a page and add shortcuts.
"""
