"""The documentation: pages in Markdown, and `docs.site`, which builds a site of them."""
