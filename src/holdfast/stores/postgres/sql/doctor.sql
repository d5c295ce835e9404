-- name: settings
-- As sessions other than ours have them.
SELECT name, reset_val FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'autovacuum',
               'statement_timeout', 'server_version', 'default_transaction_isolation')

-- name: standbys
-- What the server tells of its standbys; without the privilege to see more, only that they are there.
SELECT application_name, coalesce(state, '?'), coalesce(sync_state, '?') FROM pg_stat_replication ORDER BY 1

-- name: horizon
-- Who keeps dead rows from being cleared away, the oldest first: sessions, and seconds since their transaction began.
SELECT pid, coalesce(application_name, ''), coalesce(usename, ''), coalesce(state, '?'),
       extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND xact_start < clock_timestamp() - make_interval(secs => %s)
ORDER BY xact_start LIMIT 3

-- name: slots
-- Unused replication slots: they keep WAL, and with xmin also dead rows, for ever.
SELECT slot_name, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8
FROM pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL ORDER BY restart_lsn LIMIT 3

-- name: prepared
SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 3

-- name: feedback
-- Standbys whose queries keep dead rows here (hot_standby_feedback), and by how many transactions.
SELECT application_name, age(backend_xmin) FROM pg_stat_replication
WHERE backend_xmin IS NOT NULL AND age(backend_xmin) > 100000 ORDER BY 2 DESC LIMIT 3
