"""Tables and figures of what came out. Nothing is imported here: tables need no matplotlib, and it is 90 MB."""
