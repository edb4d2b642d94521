"""What the dashboard costs: beside queries, on the wire, until it is painted, and on the server."""
