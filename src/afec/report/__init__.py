"""Tables and figures of what came out. Nothing is imported here, because tables need no matplotlib."""
