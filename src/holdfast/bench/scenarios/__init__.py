"""One question, one file: each scenario answers with figures."""
