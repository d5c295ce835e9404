-- oldest code: 2
-- What is not about one task, such as tokens.

CREATE TABLE documents (
    kind    text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    value   bytea NOT NULL,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);

-- include: functions/documents.sql
