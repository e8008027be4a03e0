"""What each API does, one family per file. A handler takes the node and a decoded request, and returns the answer's body as a dict."""
