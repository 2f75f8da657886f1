-- Stands for the client that a run was begun for, as the agent knows it. NULL: begun before this was kept; then it is anybody's
-- who knows the call, as it was.
ALTER TABLE runs ADD COLUMN client TEXT;
