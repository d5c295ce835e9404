#!lua flags=allow-oom
-- Executes changes. Runs on a full server too: what is running must be able to end.
-- ARGV: now, changes (msgpack, see changes.lua), results…      Reply: verdicts
-- include: common
-- include: indexes
-- include: changes
local verdicts = apply_all(ARGV[2], 3)
finish()
return verdicts
