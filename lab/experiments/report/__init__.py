"""The report: tables, figures and remarks about stored results, as Markdown, JSON and one HTML page."""
