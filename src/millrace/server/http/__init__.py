"""HTTP/1.1, as far as a server of requests needs it: parser, connection, response."""
