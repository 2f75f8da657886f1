-- The audit logs of all processes. A line is known by its SHA-256: one that is sent again, or from a copy of its file, is the same.
CREATE TABLE respool.audit_lines (
    digest bytea PRIMARY KEY,
    node text NOT NULL,
    at bigint NOT NULL,
    place bigint NOT NULL,
    line text NOT NULL
);
CREATE INDEX audit_lines_at ON respool.audit_lines (at DESC, node, place DESC);

-- Up to where the lines of each file are in `audit_lines`.
CREATE TABLE respool.audit_files (
    file text PRIMARY KEY,
    added_until bigint NOT NULL
);
