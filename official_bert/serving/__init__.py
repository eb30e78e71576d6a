"""The HTTP server for exported models, and its page.

Imports export, for the requests that an export is warmed up by, and utils. Nothing imports it but the script serve.
"""
