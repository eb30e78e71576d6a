"""The HTTP server for exported models, and its page.

No package imports it: it is run by the command serve.
"""
