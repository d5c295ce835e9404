"""Real Redis and Valkey servers for tests, alone and in groups, and a proxy that loses replies."""
