-- One row once the store is divided into partitions. The version stands apart: it is compared with every call.
CREATE TABLE partition_map (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version  INTEGER NOT NULL,
    map      BLOB NOT NULL                              -- JSON
) STRICT;
