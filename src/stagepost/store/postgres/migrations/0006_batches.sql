-- The stages whose first attempts may share a transaction: which of them ran when their process died is not known.
ALTER TABLE stagepost_incarnation ADD COLUMN batched text[] NOT NULL DEFAULT '{}';
