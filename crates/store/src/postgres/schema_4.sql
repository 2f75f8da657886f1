-- The digests of the packages that a node works with.
ALTER TABLE respool.nodes ADD COLUMN packages text[] NOT NULL DEFAULT '{}';

-- What is asked most often is one statement, which commits by itself: a round trip costs as much as a commit. Plans do not depend on the
-- parameters or on statistics, which may be those of an empty table: the indices are right in any case.

-- Queues an entry. Returns the id of the earlier one if it is a duplicate, otherwise nothing. Others cannot queue into its lane, or
-- remember its key, until the end of the transaction.
CREATE FUNCTION respool.enqueue(
    new_id text, new_queue text, new_lane text, delay bigint, new_payload text, new_key text, keep bigint,
    clock_queue text, clock_name text, clock_schedule text, clock_time bigint
) RETURNS text LANGUAGE plpgsql
    SET lock_timeout = '20s' SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    earlier text;
BEGIN
    -- Keys before lanes, as in every transaction that locks several.
    IF new_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('key ' || new_key, 0));
    END IF;
    IF new_lane IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('lane ' || new_queue || ' ' || new_lane, 0));
    END IF;
    SELECT entry INTO earlier FROM respool.dedupe WHERE key = new_key AND until > respool.now_ms();
    IF FOUND THEN
        RETURN earlier;
    END IF;
    IF clock_name IS NOT NULL THEN
        INSERT INTO respool.clocks AS known (queue, name, schedule, mark, entry)
            VALUES (clock_queue, clock_name, clock_schedule, clock_time, new_id)
            ON CONFLICT (queue, name) DO UPDATE SET mark = clock_time, entry = new_id
            WHERE known.schedule = clock_schedule AND known.mark < clock_time;
        -- The clock is there already, or beyond.
        IF NOT FOUND THEN
            SELECT coalesce(entry, '') INTO earlier FROM respool.clocks WHERE queue = clock_queue AND name = clock_name;
            RETURN coalesce(earlier, '');
        END IF;
    END IF;
    IF new_key IS NOT NULL THEN
        INSERT INTO respool.dedupe (key, until, entry) VALUES (new_key, respool.now_ms() + keep, new_id)
            ON CONFLICT (key) DO UPDATE SET until = excluded.until, entry = excluded.entry;
    END IF;
    INSERT INTO respool.queue (id, queue, lane, state, due, accepted, payload, blocked)
        VALUES (new_id, new_queue, new_lane, 'waiting', respool.now_ms() + delay, respool.now_ms(), new_payload, EXISTS (
            SELECT 1 FROM respool.queue
            WHERE queue = new_queue AND lane = new_lane AND state IN ('waiting', 'claimed', 'held')));
    RETURN NULL;
END $$;

-- Claims what is due and first in its lane, the longest due first. The attempt of a dead holder goes on. Those before the entry
-- `towards`, in its lane, lead towards it.
CREATE FUNCTION respool.claim(queues text[], most bigint, lease bigint, working text[], towards text)
    RETURNS TABLE (
        id text, epoch bigint, queue text, payload text, attempt integer, is_continued boolean, run text, accepted bigint, due bigint,
        seq bigint
    ) LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    IF EXISTS (SELECT 1 FROM respool.queue WHERE state = 'claimed' AND lease_until <= respool.now_ms()) THEN
        UPDATE respool.queue SET state = 'waiting' WHERE seq IN (
            SELECT seq FROM respool.queue
            WHERE state = 'claimed' AND lease_until <= respool.now_ms() AND id <> ALL (working)
            FOR UPDATE SKIP LOCKED);
    END IF;
    -- Of each queue, only so many heads of lanes are looked at, in the order of the index: entries behind them are blocked.
    RETURN QUERY WITH ready AS MATERIALIZED (
            SELECT head.seq, head.is_new FROM unnest(queues) AS wanted (name), LATERAL (
                SELECT one.seq, one.due, one.is_new_attempt AS is_new FROM respool.queue AS one
                WHERE one.queue = wanted.name AND one.state = 'waiting' AND NOT one.blocked AND one.due <= respool.now_ms()
                    AND (towards IS NULL OR one.id = towards OR EXISTS (
                        SELECT 1 FROM respool.queue AS goal
                        WHERE goal.id = towards AND goal.lane = one.lane AND goal.seq > one.seq))
                ORDER BY one.due, one.seq LIMIT most FOR UPDATE SKIP LOCKED) AS head
            ORDER BY head.due, head.seq LIMIT most)
        -- A new attempt has no run yet: the one of the attempt before is not its own.
        UPDATE respool.queue AS entry
        SET state = 'claimed', epoch = entry.epoch + 1, lease_until = respool.now_ms() + lease,
            attempt = entry.attempt + CASE WHEN is_new THEN 1 ELSE 0 END,
            run = CASE WHEN is_new THEN NULL ELSE entry.run END, is_new_attempt = false
        FROM ready WHERE entry.seq = ready.seq
        RETURNING entry.id, entry.epoch, entry.queue, entry.payload, entry.attempt, NOT is_new, entry.run, entry.accepted, entry.due,
            entry.seq;
END $$;
