"""The serve command: an HTTP server for exported models, with a web page. No other package imports it."""
