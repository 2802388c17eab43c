"""The native API over HTTP: what is asked, what is answered, and the description of both."""
