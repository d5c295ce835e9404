"""Real Redis, Valkey, PostgreSQL, pgbouncer and Patroni servers for tests, and a proxy that loses replies."""
