"""Keys, tokens and scopes, payload encryption, redaction: what keeps secrets secret."""
