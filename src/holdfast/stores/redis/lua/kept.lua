#!lua flags=no-writes
-- ARGV: now, key      Reply: the value, or nil
-- include: common
-- include: keeping
return kept(ARGV[2])
